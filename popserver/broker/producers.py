"""Which producers of a topic are on a stream here, and can be asked about a half message (protocol 8.1)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from popserver.domain.names import Resource
from popserver.store.transactions import Check

__all__ = ["Ask", "Check", "Producers"]

# Sends one check to a producer; raises `PopError` when it may not be asked, anything else when its stream is broken.
Ask = Callable[[Check], Awaitable[None]]


class _Producer(NamedTuple):
    stream: object
    ask: Ask
    topics: set[Resource]


class Producers:
    """Every producer that has told its settings on a stream of this server."""

    def __init__(self) -> None:
        self._known: dict[str, _Producer] = {}

    def __len__(self) -> int:
        return len(self._known)

    def joined(self, client_id: str, stream: object, topics: Iterable[Resource], ask: Ask) -> None:
        """The producer said what it publishes; the newest of its streams counts, and what it has sent before stays."""
        before = self._known.get(client_id)
        named = set(topics) | (before.topics if before is not None else set())
        self._known[client_id] = _Producer(stream, ask, named)

    def sends(self, client_id: str, topic: Resource) -> None:
        """The producer sent a half message to a topic that its settings may not name (protocol 8.1)."""
        known = self._known.get(client_id)
        if known is not None:
            known.topics.add(topic)

    def may_not(self, client_id: str, stream: object, topic: Resource) -> None:
        """The producer on that stream may not be asked about the topic, until it names it or sends there again."""
        known = self._known.get(client_id)
        if known is not None and known.stream is stream:
            known.topics.discard(topic)

    def left(self, client_id: str, stream: object | None = None) -> None:
        """The stream ended (None: whichever it is); the producer cannot be asked any more."""
        known = self._known.get(client_id)
        if known is not None and stream in (None, known.stream):
            del self._known[client_id]

    @property
    def topics(self) -> set[Resource]:
        """Those with a producer here."""
        return set[Resource]().union(*(each.topics for each in self._known.values()))

    def of_topic(self, topic: Resource) -> list[str]:
        """Client ids, in an order that stays the same."""
        return sorted(client_id for client_id, each in self._known.items() if topic in each.topics)

    def stream_of(self, client_id: str) -> tuple[object, Ask] | None:
        """How to ask the producer; None when it has left."""
        known = self._known.get(client_id)
        return None if known is None else (known.stream, known.ask)
