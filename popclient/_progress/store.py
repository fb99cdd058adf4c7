"""Where a group's progress is kept (requirements H1, H4): by the server, in a file, or in a store of the user.

An offset is the *next* one to consume. New progress is kept in memory at once. Every few seconds, and when a queue is
given up, it is written to the store. Methods that use the store are coroutines; the others only use memory and may be
called from any thread.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection
from enum import StrEnum
from typing import Final

from popclient.message import MessageQueue

NO_OFFSET: Final = -1  # the group has no progress in the queue
OFFSET_ERROR: Final = -2  # unknown: the store failed, so no queue may begin


class ReadOffsetType(StrEnum):
    """Where `read_offset` looks."""

    READ_FROM_MEMORY = "READ_FROM_MEMORY"
    READ_FROM_STORE = "READ_FROM_STORE"
    MEMORY_FIRST_THEN_STORE = "MEMORY_FIRST_THEN_STORE"


class OffsetStore(ABC):
    """One group's progress in one consumer. Derive from it to write your own store.

    A store that does not need `begin`, `freeze`, `generation`, `note_generation` and `close` may leave them out.
    """

    @abstractmethod
    async def load(self) -> None:
        """Called once, before all others. Raises if stored progress cannot be read: then no queue may begin."""

    @abstractmethod
    def update_offset(self, mq: MessageQueue, offset: int, increase_only: bool) -> None:
        """Sets the offset in memory. With `increase_only` a smaller offset than the present one changes nothing."""

    @abstractmethod
    async def read_offset(self, mq: MessageQueue, read_type: ReadOffsetType) -> int:
        """The next offset to consume; -1 if the group has no progress there, -2 if the store failed. Never raises."""

    @abstractmethod
    async def persist_all(self, mqs: Collection[MessageQueue]) -> None:
        """Writes the offsets of these queues to the store, and forgets those of others. Logs a failure."""

    @abstractmethod
    async def persist(self, mq: MessageQueue) -> None:
        """Writes the offset of one queue to the store. Logs a failure."""

    @abstractmethod
    def remove_offset(self, mq: MessageQueue) -> None:
        """Forgets the offset of the queue in memory, frozen or not. The store keeps what it has."""

    @abstractmethod
    def clone_offset_table(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """A copy of the offsets in memory, of one topic or of all."""

    @abstractmethod
    async def update_consume_offset_to_broker(self, mq: MessageQueue, offset: int, is_oneway: bool = True) -> None:
        """Writes an offset to the store, not to memory. With `is_oneway` logs a failure, otherwise raises it."""

    async def begin(self, mq: MessageQueue, offset: int) -> int:
        """Stores where the group begins the queue if it has no progress yet. Returns its progress. Raises failures."""
        await self.update_consume_offset_to_broker(mq, offset, is_oneway=False)
        return offset

    def freeze(self, mq: MessageQueue, offset: int) -> None:
        """Sets a corrected offset in memory. It does not change until `remove_offset`, also not by late results."""
        self.update_offset(mq, offset, increase_only=False)

    def generation(self, mq: MessageQueue) -> int:
        """The generation of the topic that the progress last read belongs to; 0 if the store does not know it."""
        return 0

    def note_generation(self, topic: str, generation: int) -> None:  # noqa: B027  most stores do not keep it
        """The topic has this generation now. Progress in an earlier one is ignored."""

    async def close(self) -> None:  # noqa: B027  most stores have nothing to give up
        """The store is not used any more."""


class OffsetMemory:
    """Offsets in memory, for all stores. Safe in threads."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._offsets: dict[MessageQueue, int] = {}
        self._frozen: set[MessageQueue] = set()

    def update(self, mq: MessageQueue, offset: int, increase_only: bool) -> None:
        """Raises ValueError for an offset below 0."""
        _require_offset(mq, offset)
        with self._mutex:
            if mq in self._frozen or (increase_only and offset <= self._offsets.get(mq, NO_OFFSET)):
                return
            self._offsets[mq] = offset

    def freeze(self, mq: MessageQueue, offset: int) -> None:
        _require_offset(mq, offset)
        with self._mutex:
            self._offsets[mq] = offset
            self._frozen.add(mq)

    def get(self, mq: MessageQueue) -> int:
        """The offset; -1 if there is none."""
        with self._mutex:
            return self._offsets.get(mq, NO_OFFSET)

    def remove(self, mq: MessageQueue) -> None:
        with self._mutex:
            self._offsets.pop(mq, None)
            self._frozen.discard(mq)

    def keep_only(self, mqs: Collection[MessageQueue]) -> None:
        with self._mutex:
            for mq in self._offsets.keys() - set(mqs):
                del self._offsets[mq]
                self._frozen.discard(mq)

    def copy(self, topic: str | None = None) -> dict[MessageQueue, int]:
        with self._mutex:
            return {mq: offset for mq, offset in self._offsets.items() if topic in (None, mq.topic)}


class RememberingStore(OffsetStore):
    """A store that keeps new progress in an OffsetMemory. Those that derive from it say where it is written."""

    def __init__(self) -> None:
        self._memory = OffsetMemory()

    def update_offset(self, mq: MessageQueue, offset: int, increase_only: bool) -> None:
        self._memory.update(mq, offset, increase_only)

    def freeze(self, mq: MessageQueue, offset: int) -> None:
        self._memory.freeze(mq, offset)

    async def read_offset(self, mq: MessageQueue, read_type: ReadOffsetType) -> int:
        remembered = self._memory.get(mq)
        is_enough = remembered >= 0 and read_type is ReadOffsetType.MEMORY_FIRST_THEN_STORE
        if is_enough or read_type is ReadOffsetType.READ_FROM_MEMORY:
            return remembered
        return await self._read_stored(mq)

    async def persist_all(self, mqs: Collection[MessageQueue]) -> None:
        self._memory.keep_only(mqs)
        await self._persist(self._memory.copy())

    async def persist(self, mq: MessageQueue) -> None:
        offset = self._memory.get(mq)
        if offset >= 0:
            await self._persist({mq: offset})

    def remove_offset(self, mq: MessageQueue) -> None:
        self._memory.remove(mq)

    def clone_offset_table(self, topic: str | None = None) -> dict[MessageQueue, int]:
        return self._memory.copy(topic)

    @abstractmethod
    async def _read_stored(self, mq: MessageQueue) -> int:
        """As `read_offset`; puts what it has found into the memory."""

    @abstractmethod
    async def _persist(self, offsets: dict[MessageQueue, int]) -> None:
        """Writes them to the store. Logs a failure."""


def _require_offset(mq: MessageQueue, offset: int) -> None:
    if offset < 0:
        raise ValueError(f"offset {offset} of {mq} is below 0; the next offset to consume is 0 or more")
