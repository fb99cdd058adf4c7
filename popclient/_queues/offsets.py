"""Where a group's progress is kept (requirements H1, H4): by the server, in a file, or where the user likes.

An offset is the *next* one to consume. What has been consumed goes into memory at once; every few seconds, and when a
queue is given up, memory goes to the store. Methods that reach the store are coroutines; the others only touch memory
and may be called from any thread.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection
from enum import StrEnum
from typing import Final

from popclient.message import MessageQueue

NO_OFFSET: Final = -1  # the group has no progress in the queue
OFFSET_ERROR: Final = -2  # unknown: the store failed, and nothing may begin on a guess


class ReadOffsetType(StrEnum):
    """Where `read_offset` looks."""

    READ_FROM_MEMORY = "READ_FROM_MEMORY"
    READ_FROM_STORE = "READ_FROM_STORE"
    MEMORY_FIRST_THEN_STORE = "MEMORY_FIRST_THEN_STORE"


class OffsetStore(ABC):
    """One group's progress, as one consumer keeps it. Derive from it to bring a store of your own.

    `begin`, `freeze`, `generation`, `note_generation` and `close` may stay as they are where a store has no use for
    them.
    """

    @abstractmethod
    async def load(self) -> None:
        """Before anything else, once. Raises when stored progress cannot be read: nothing may begin at a guess then."""

    @abstractmethod
    def update_offset(self, mq: MessageQueue, offset: int, increase_only: bool) -> None:
        """Into memory. With `increase_only` a smaller offset than the present one changes nothing."""

    @abstractmethod
    async def read_offset(self, mq: MessageQueue, read_type: ReadOffsetType) -> int:
        """The next offset to consume; -1 if the group has no progress there, -2 if the store failed. Never raises."""

    @abstractmethod
    async def persist_all(self, mqs: Collection[MessageQueue]) -> None:
        """Memory of these queues to the store; memory of others is forgotten. A failure is logged; the next may do."""

    @abstractmethod
    async def persist(self, mq: MessageQueue) -> None:
        """Memory of one queue to the store. A failure is logged."""

    @abstractmethod
    def remove_offset(self, mq: MessageQueue) -> None:
        """Forgets memory of the queue, frozen or not; the store keeps what it has."""

    @abstractmethod
    def clone_offset_table(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """A copy of memory, of one topic or of all."""

    @abstractmethod
    async def update_consume_offset_to_broker(self, mq: MessageQueue, offset: int, is_oneway: bool = True) -> None:
        """Past memory, straight to the store. With `is_oneway` a failure is only logged; otherwise it is raised."""

    async def begin(self, mq: MessageQueue, offset: int) -> int:
        """The group begins the queue here where it has no progress yet; where it begins. A failure is raised."""
        await self.update_consume_offset_to_broker(mq, offset, is_oneway=False)
        return offset

    def freeze(self, mq: MessageQueue, offset: int) -> None:
        """Sets memory to a corrected offset and holds it there until `remove_offset`: late results must not move it."""
        self.update_offset(mq, offset, increase_only=False)

    def generation(self, mq: MessageQueue) -> int:
        """Of the topic that the progress last read belongs to; 0 where the store does not know."""
        return 0

    def note_generation(self, topic: str, generation: int) -> None:  # noqa: B027  most stores do not keep it
        """The topic is of that generation now. Progress in an earlier one counts no more."""

    async def close(self) -> None:  # noqa: B027  most stores have nothing to give up
        """Nothing will be asked of it any more."""


class OffsetMemory:
    """The memory that stores share. Safe in threads."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._offsets: dict[MessageQueue, int] = {}
        self._frozen: set[MessageQueue] = set()

    def update(self, mq: MessageQueue, offset: int, increase_only: bool) -> None:
        """Raises ValueError for an offset below 0: no queue has such a place."""
        _require_place(mq, offset)
        with self._mutex:
            if mq in self._frozen or (increase_only and offset <= self._offsets.get(mq, NO_OFFSET)):
                return
            self._offsets[mq] = offset

    def freeze(self, mq: MessageQueue, offset: int) -> None:
        _require_place(mq, offset)
        with self._mutex:
            self._offsets[mq] = offset
            self._frozen.add(mq)

    def get(self, mq: MessageQueue) -> int:
        """-1 without any."""
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


def _require_place(mq: MessageQueue, offset: int) -> None:
    if offset < 0:
        raise ValueError(f"offset {offset} of {mq} is below 0; the next offset to consume is 0 or more")
