"""Looks of pulls, taken together: while one lot is being looked at the next one gathers.

A look costs its transaction and its thread's turn more than its reading. So those that wait go together, in one
transaction; nothing is added where nobody waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from popserver.broker.reader import Reader
from popserver.domain.filtering import Filter, SqlFilter
from popserver.domain.pulling import Pulled
from popserver.store import pulling
from popserver.store.pulling import Pull

# Asked for by the pulls of one lot. Half as many cost 14 % more per message; the decoding of more holds up other calls.
MESSAGES_MAX = 1_024


# A pull counts as so many at least: each may get a single message of any size.
_MESSAGES_MIN = 32
# A lot has so many pulls at most whose SQL filter is to be asked: of each it may do the work of a look.
_SQL_FILTERS_MAX = 8


class _Wait(NamedTuple):
    pull: Pull
    answer: asyncio.Future[Pulled]


class Looks:
    """Every look of this server's pulls."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._waiting: list[_Wait] = []
        self._work: asyncio.Task[None] | None = None

    async def look(self, pull: Pull) -> Pulled:
        """What the pull finds; raises `TopicNotFound`, and what ails the database."""
        loop = asyncio.get_running_loop()
        wait = _Wait(pull, loop.create_future())
        self._waiting.append(wait)
        if self._work is None:
            self._work = loop.create_task(self._look())
        return await wait.answer

    async def _look(self) -> None:
        try:
            while self._waiting:
                await self._look_at(self._take())
        finally:
            self._work = None

    async def _look_at(self, lot: Sequence[_Wait]) -> None:
        found: Sequence[Pulled | BaseException]
        try:
            found = await self._reader.read(partial(pulling.look, pulls=[each.pull for each in lot]))
        except Exception as error:  # noqa: BLE001 - it is theirs who wait
            found = [error] * len(lot)
        for each, outcome in zip(lot, found, strict=True):
            if each.answer.done():
                continue
            if isinstance(outcome, BaseException):
                each.answer.set_exception(outcome)
            else:
                each.answer.set_result(outcome)

    def _take(self) -> list[_Wait]:
        """The next lot: some of those that want to look, and at least one."""
        count, messages = 0, 0
        for each in self._waiting:
            messages += max(each.pull.batch_size, _MESSAGES_MIN) + _cost_of_filter(each.pull.wanted)
            if count and messages > MESSAGES_MAX:
                break
            count += 1
        lot, self._waiting = self._waiting[:count], self._waiting[count:]
        return lot


def _cost_of_filter(wanted: Filter) -> int:
    """What a filter adds to its pull, as so many messages."""
    return MESSAGES_MAX // _SQL_FILTERS_MAX if isinstance(wanted, SqlFilter) else len(wanted.tags)
