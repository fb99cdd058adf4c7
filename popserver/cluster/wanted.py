"""Of which topics the other servers want to be notified.

A NOTIFY costs each of the other servers a wake-up, and Postgres lets one transaction with a NOTIFY commit at a time. So
a transaction notifies only of topics in which some other server has, or had, waiting polls. Each server announces these
topics. A server that has announced nothing yet wants to hear of all.

An announcement may arrive after a commit that it concerns. So a server remembers of which topics it has not notified,
and when another server announces one of these, it notifies of it then.
"""

from __future__ import annotations

from collections.abc import Collection


class WantedTopics:
    """What the other servers have announced. The event loop calls all methods except `among`."""

    def __init__(self) -> None:
        self._by_server: dict[str, frozenset[int] | None] = {}
        self._running: frozenset[str] = frozenset()
        self._is_sure = False  # whether no other servers run than these
        self._wanted: frozenset[int] | None = None  # of all servers together; None: all topics
        self._untold: set[int] = set()  # topics with commits of which nobody was notified

    def among(self, topics: Collection[int]) -> Collection[int]:
        """Those of these topics that another server wants to hear of. The writer's thread calls it."""
        if self._wanted is None or not topics:
            return topics
        # First this, then the look at what is wanted; `announced` does both in the other order. So none is missed.
        self._untold.update(topics)
        wanted = self._wanted
        told = topics if wanted is None else [each for each in topics if each in wanted]
        self._untold.difference_update(told)
        return told

    def announced(self, server_id: str, topics: frozenset[int] | None) -> frozenset[int]:
        """A server wants to hear of these topics, None: of all. Returns those of which to notify it now."""
        self._by_server[server_id] = topics
        self._add_up()
        return frozenset(self._untold) if topics is None else topics & self._untold

    def agree_on(self, server_ids: Collection[str]) -> None:
        """These other servers run. One that has announced nothing wants to hear of all topics."""
        # An announcement may come before the first heartbeat that lists its server, so only those that ran before go.
        for gone in self._running.difference(server_ids):
            self._by_server.pop(gone, None)
        self._running, self._is_sure = frozenset(server_ids), True
        self._add_up()

    def unsure(self) -> None:
        """An unknown server runs: notify of all topics until `agree_on`."""
        self._is_sure = False
        self._add_up()

    def forget(self) -> None:
        """Announcements may have been missed: notify of all topics until the servers announce again."""
        self._by_server.clear()
        self._add_up()

    def _add_up(self) -> None:
        listed = [topics for each in self._running if (topics := self._by_server.get(each)) is not None]
        are_known = self._is_sure and len(listed) == len(self._running)
        self._wanted = frozenset().union(*listed) if are_known else None
