"""Whether a topic is the one that a consumer knows, or another one that was made under its name since (requirement B9).

A server tells it by a number, the topic's generation: opaque, and 0 where it is not told.
"""

from __future__ import annotations


class Generations:
    """What one consumer knows of its topics. Belongs to one event loop."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._missing: set[str] = set()
        self._came_later: set[str] = set()

    def missing(self, topic: str) -> bool:
        """The server has no such topic now. Is that new?"""
        is_new = topic not in self._missing
        self._missing.add(topic)
        self._came_later.add(topic)
        return is_new

    def met(self, topic: str, generation: int) -> bool:
        """The server has told the topic's generation. Is it another one than before?"""
        self._missing.discard(topic)
        before = self._known.get(topic, 0)
        if not generation or generation == before:
            return False
        self._known[topic] = generation
        if before:
            self._came_later.add(topic)
        return before > 0

    def knows(self, topic: str) -> bool:
        return topic in self._known

    def wants_all(self, topic: str) -> bool:
        """Was the topic made while this consumer was there? Then all of its messages came later than the consumer."""
        return topic in self._came_later

    def forget(self, topic: str) -> None:
        self._known.pop(topic, None)
        self._missing.discard(topic)
        self._came_later.discard(topic)
