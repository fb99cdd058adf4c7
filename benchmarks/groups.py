"""Consumer groups for the receive cases: the same stored messages are read by one fresh group after another."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

BATCH_SIZE = 32


class Groups(Generic[T]):
    """Gives out the group to receive from, as `prepare` returns it.

    Before a group runs out of messages, the next one is used, so no receive waits for messages. A receive of one
    message creates the group before the measured time.
    """

    def __init__(self, prefix: str, stock: int, prepare: Callable[[str], Awaitable[T]]) -> None:
        self._names: Iterator[str] = (f"{prefix}-{number}" for number in itertools.count())
        self._stock = stock
        self._prepare = prepare
        self._ready: list[T] = []
        self._left = 0
        self._choosing = asyncio.Lock()
        self._current: T

    async def prepare(self, count: int) -> None:
        self._ready = [await self._prepare(next(self._names)) for _ in range(count)][::-1]

    async def to_receive(self) -> T:
        """The group from which a whole batch can be had."""
        # One caller at a time: while a group is prepared, no caller may get the group before.
        async with self._choosing:
            if self._left < BATCH_SIZE:
                self._current = self._ready.pop() if self._ready else await self._prepare(next(self._names))
                self._left = self._stock - 1
            self._left -= BATCH_SIZE
            return self._current
