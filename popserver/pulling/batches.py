"""Pulls read in batches: while one batch reads, the next one collects.

A read's transaction and thread switch cost more than its query. So all waiting pulls share one transaction. A pull that
comes alone does not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from popserver.engine.reader import Reader
from popserver.filters import Filter, SqlFilter
from popserver.pulling.read import QueueRead, read_queues
from popserver.pulling.rules import Pulled

# Messages that one batch of pulls may ask for. Half as many cost 14 % more each; decoding more delays other calls.
MESSAGES_MAX = 1_024
# A pull counts as at least this many messages: a single message may have any size.
_MESSAGES_MIN = 32
# A batch has at most this many pulls with a SQL filter: each may do the work of a whole read.
_SQL_FILTERS_MAX = 8


class _WaitingPull(NamedTuple):
    pull: QueueRead
    answer: asyncio.Future[Pulled]


class PullBatcher:
    """Reads for this server's pulls, in batches."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._waiting: list[_WaitingPull] = []
        self._work: asyncio.Task[None] | None = None

    async def read(self, pull: QueueRead) -> Pulled:
        """What the pull finds. Raises `TopicNotFound`, and errors of the database."""
        loop = asyncio.get_running_loop()
        wait = _WaitingPull(pull, loop.create_future())
        self._waiting.append(wait)
        if self._work is None:
            self._work = loop.create_task(self._run())
        return await wait.answer

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._read_batch(self._next_batch())
        finally:
            self._work = None

    async def _read_batch(self, batch: Sequence[_WaitingPull]) -> None:
        found: Sequence[Pulled | BaseException]
        try:
            found = await self._reader.look_up(partial(read_queues, pulls=[each.pull for each in batch]))
        except Exception as error:  # noqa: BLE001 - the waiting calls get it
            found = [error] * len(batch)
        for each, outcome in zip(batch, found, strict=True):
            if each.answer.done():
                continue
            if isinstance(outcome, BaseException):
                each.answer.set_exception(outcome)
            else:
                each.answer.set_result(outcome)

    def _next_batch(self) -> list[_WaitingPull]:
        """The next batch: the first waiting pulls, at least one."""
        count, messages = 0, 0
        for each in self._waiting:
            messages += max(each.pull.batch_size, _MESSAGES_MIN) + _cost_of_filter(each.pull.wanted)
            if count and messages > MESSAGES_MAX:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch


def _cost_of_filter(wanted: Filter) -> int:
    """The cost of a pull's filter, in messages."""
    return MESSAGES_MAX // _SQL_FILTERS_MAX if isinstance(wanted, SqlFilter) else len(wanted.tags)
