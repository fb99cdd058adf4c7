"""The lite topics of this server's clients: so a commit wakes only the clients that may get a message.

The database has the subscriptions; this copy only decides which clients a commit wakes. Other servers notify this one
when they change a client's lite topics, and then it reads them again. A client without lite topics is not in the copy.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from popserver.engine.reader import Reader
from popserver.engine.wakeups import PollKey, Wakeups
from popserver.members import lite_subscriptions
from popserver.model.budget import Budget


@dataclass(slots=True)
class LiteClient:
    """A client's lite topics in one topic, and whether it shares some with other clients of its group."""

    lite_topics: set[str] = field(default_factory=set)
    shares: bool = False


@dataclass(slots=True, eq=False)
class _Read:
    """A read of a client's lite topics that has not ended."""

    is_outdated: bool = False


class LiteClients:
    """The lite consumers of this server that subscribe to lite topics."""

    def __init__(self, reader: Reader, wakeups: Wakeups, budget: Budget) -> None:
        """`budget`: the limit for the lite topics of all clients together."""
        self._reader = reader
        self._wakeups = wakeups
        self._budget = budget
        self._known: dict[PollKey, LiteClient] = {}
        self._reads: dict[PollKey, list[_Read]] = {}
        self.topics: dict[int, set[PollKey]] = {}  # the clients of each topic
        self._by_hash: dict[tuple[int, int], tuple[PollKey, ...]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: PollKey) -> LiteClient | None:
        return self._known.get(key)

    def keys_of(self, client_id: str) -> list[PollKey]:
        """The keys (group, topic, client) with subscriptions of the client."""
        return [key for key in self._known if key.client_id == client_id]

    def shares(self, key: PollKey) -> bool:
        """Whether other clients of its group subscribe to some of the client's lite topics."""
        client = self._known.get(key)
        return client is not None and client.shares

    def is_asking(self, key: PollKey) -> bool:
        """Whether this server needs the client's lite topics: it has them, or a poll of the client is parked."""
        return key in self._known or self._wakeups.has_parked(key.wake_key)

    @contextmanager
    def room(self, count: int, client_id: str) -> Iterator[None]:
        """Reserve so many more lite topics of a client for the block. Raises `TooManyRequests`."""
        if not self._budget.take(count):
            raise self._budget.refusal(f"{count} lite topics of client '{client_id[:64]}'")
        try:
            yield
        finally:
            self._budget.give_back(count)

    async def load(self, key: PollKey) -> LiteClient:
        """The client; read from the database if it is not in the copy."""
        return self._known.get(key) or await self.read(key)

    async def read(self, key: PollKey) -> LiteClient:
        """Read the client's lite topics from the database, and wake it."""
        while True:
            read = _Read()
            self._reads.setdefault(key, []).append(read)
            try:
                lite_topics, shares = await self._reader.read(
                    lambda conn: (lite_subscriptions.lite_topics_of(conn, key), lite_subscriptions.is_shared(conn, key))
                )
            finally:
                self._end_read(key, read)
            if not read.is_outdated:
                break
        known = self._known.get(key)
        before = set() if known is None else known.lite_topics
        client = self.change(key, lite_topics - before, before - lite_topics)
        client.shares = shares
        return client

    def change(self, key: PollKey, added: Iterable[str], removed: Iterable[str]) -> LiteClient:
        """Add and remove lite topics of a client, and wake it."""
        for read in self._reads.get(key, ()):
            read.is_outdated = True
        client = self._known.get(key)
        if client is None:
            client = self._known[key] = LiteClient()
            self.topics.setdefault(key.topic_id, set()).add(key)
        count = len(client.lite_topics)
        for name in client.lite_topics.intersection(removed):
            client.lite_topics.discard(name)
            self._drop(key, name)
        for name in set(added) - client.lite_topics:
            client.lite_topics.add(name)
            hash_key = (key.topic_id, zlib.crc32(name.encode()))
            self._by_hash[hash_key] = (*self._by_hash.get(hash_key, ()), key)
        self._budget.add(len(client.lite_topics) - count)
        if client.lite_topics:
            self._wakeups.wake(key.wake_key)
        else:
            self.forget(key)
        return client

    def forget(self, key: PollKey) -> None:
        """Remove a client that has left or has no lite topics. Wake its parked polls: no commit will."""
        client = self._known.pop(key, None)
        if client is None:
            return
        self.topics[key.topic_id].discard(key)
        if not self.topics[key.topic_id]:
            del self.topics[key.topic_id]
        for name in client.lite_topics:
            self._drop(key, name)
        self._budget.give_back(len(client.lite_topics))
        self._wakeups.forget(key.wake_key)

    def wake(self, topic_id: int, hashes: Collection[int] | None) -> None:
        """Lite topics with these hashes have messages to deliver; None: perhaps all of the topic."""
        if hashes is None:
            woken = set(self.topics.get(topic_id, ()))
        else:
            woken = {key for each in hashes for key in self._by_hash.get((topic_id, each), ())}
        for key in woken:
            self._wakeups.wake(key.wake_key)

    def _end_read(self, key: PollKey, read: _Read) -> None:
        self._reads[key].remove(read)
        if not self._reads[key]:
            del self._reads[key]

    def _drop(self, key: PollKey, name: str) -> None:
        hash_key = (key.topic_id, zlib.crc32(name.encode()))
        # Remove the key once: the client may have another lite topic with the same hash.
        left = list(self._by_hash[hash_key])
        left.remove(key)
        if left:
            self._by_hash[hash_key] = tuple(left)
        else:
            del self._by_hash[hash_key]
