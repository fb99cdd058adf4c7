"""SQL filters are asked ahead of the receives that read by them, beside the writer and not in it.

Receives of one group that want the same share what is known. A look ahead does a bounded work (`messages.ranges`); a
receive that needs more comes again, after others. Filters that cost much wait for one another, and not before those
that cost little.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

from popserver.engine.reader import Reader
from popserver.filters import SqlFilter
from popserver.messages.ranges import Work
from popserver.model.remembered import Remembered
from popserver.receiving import survey
from popserver.receiving.batch import NOTHING_JUDGED, Judged
from popserver.receiving.grant import Receive
from popserver.receiving.survey import Surveyed

# A look begins before so many receives are left without messages: they need not wait for it then.
_RECEIVES_AHEAD = 4
# What is known of so many groups and filters is remembered between receives: about 100 KB each, and the filter.
_REMEMBERED_BYTES = 8 * 1024 * 1024
_BYTES_EACH = 100 * 1024
# A filter of more operands and operators than this waits where the costly ones wait.
_SMALL = 64

_Seat = tuple[int, int, SqlFilter]


class _Ahead:
    """What is known ahead of the receives of one group that want the same."""

    def __init__(self) -> None:
        self.judged = NOTHING_JUDGED
        self.left = 0  # how many messages are known that no receive has been sent for
        self.under_way = 0  # how many messages the receives may take that have not been answered
        self.taken = 0  # how many messages receives were sent for, ever
        self.is_all = False  # there was nothing else to ask about
        self.work = Work()
        self.look: asyncio.Task[None] | None = None


class Judging:
    """Every SQL filter that this server's receives bring."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._remembered: Remembered[_Seat, _Ahead] = Remembered(_REMEMBERED_BYTES)
        self._in_use: dict[_Seat, tuple[_Ahead, int]] = {}
        self._small, self._large = asyncio.Semaphore(1), asyncio.Semaphore(1)

    async def ask(self, request: Receive) -> Receive:
        """The receive with what its filter says of the next messages. `answered` must follow.

        Where it is nothing, the filter has refused a stretch, which the receive passes over.
        """
        assert isinstance(request.wanted, SqlFilter), "any other filter is asked by the database"
        seat = _seat(request)
        ahead = self._take(seat)
        try:
            judged = await self._known(ahead, request)
        except BaseException:
            self._leave(seat)
            raise
        ahead.under_way += request.batch_size
        return replace(request, judged=judged)

    def answered(self, request: Receive, granted: int) -> None:
        """The receive that was asked for is done."""
        seat = _seat(request)
        ahead, _ = self._in_use[seat]
        ahead.under_way -= request.batch_size
        if granted < request.batch_size:
            # Less than was thought: another server reads as well, or the group was reset.
            ahead.left = 0
        self._leave(seat)

    async def _known(self, ahead: _Ahead, request: Receive) -> Judged:
        # What is urgent may have come since, and goes before what is known.
        if ahead.left < request.batch_size or ahead.judged.behind or request.topic.has_priorities:
            # All who wait go on at the same moment, and so into one transaction.
            await asyncio.shield(self._looking(ahead, request))
        ahead.left -= request.batch_size
        ahead.taken += request.batch_size
        if not ahead.is_all and ahead.left < _RECEIVES_AHEAD * request.batch_size:
            self._looking(ahead, request)
        return ahead.judged

    def _looking(self, ahead: _Ahead, request: Receive) -> asyncio.Task[None]:
        """The look that is under way, or a new one."""
        if ahead.look is None or ahead.look.done():
            ahead.look = asyncio.get_running_loop().create_task(self._look(ahead, request))
            ahead.look.add_done_callback(_taken_note_of)
        return ahead.look

    async def _look(self, ahead: _Ahead, request: Receive) -> None:
        assert isinstance(request.wanted, SqlFilter)
        async with self._small if request.wanted.size <= _SMALL else self._large:
            under_way = ahead.under_way
            enough = under_way + 2 * _RECEIVES_AHEAD * request.batch_size
            ahead.work.again()
            look = partial(survey.look, request=request, known=ahead.judged, enough=enough, work=ahead.work)
            before = ahead.taken
            found: Surveyed = await self._reader.read_then(look, partial(survey.judge, work=ahead.work))
        ahead.judged, ahead.is_all = found.judged, found.is_all
        known = sum(len(each.wanted) for each in found.judged.stretches.values())
        ahead.left = known - under_way - (ahead.taken - before)

    def _take(self, seat: _Seat) -> _Ahead:
        ahead, users = self._in_use.get(seat, (None, 0))
        if ahead is None:
            ahead = self._remembered.get(seat) or _Ahead()
        self._in_use[seat] = ahead, users + 1
        return ahead

    def _leave(self, seat: _Seat) -> None:
        ahead, users = self._in_use[seat]
        if users > 1:
            self._in_use[seat] = ahead, users - 1
            return
        del self._in_use[seat]
        self._remembered.put(seat, ahead, _BYTES_EACH + seat[2].memory)


def _taken_note_of(look: asyncio.Task[None]) -> None:
    """A look that fails is told to the callers that wait for it, if there are any."""
    if not look.cancelled():
        look.exception()


def _seat(request: Receive) -> _Seat:
    assert isinstance(request.wanted, SqlFilter)
    return request.group.group_id, request.topic.topic_id, request.wanted
