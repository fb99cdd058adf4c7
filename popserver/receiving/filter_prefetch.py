"""SQL filters judge messages before a receive reads them, outside the writer.

Receives of one group with the same filter share the results. Each prefetch does a bounded amount of work
(`messages.ranges`). If a receive needs more, it starts another prefetch, after those of other receives. Expensive
filters run one at a time, and cheap ones do not wait for them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from functools import partial

from popserver.engine.reader import Reader
from popserver.filters import SqlFilter
from popserver.messages.ranges import Work
from popserver.model.cache import LruCache
from popserver.model.topic import MessageType
from popserver.receiving import filter_fetch
from popserver.receiving.batch import NOTHING_JUDGED, Judged, Receive
from popserver.receiving.filter_fetch import FilterResults

# The next prefetch starts when the accepted messages suffice for fewer receives than this, so that no receive waits.
_RECEIVES_AHEAD = 4
# Memory for results between receives. Each group and filter counts as `_BYTES_EACH`, and the filter's own size.
_CACHE_BYTES = 8 * 1024 * 1024
_BYTES_EACH = 100 * 1024
# A filter with more operands and operators than this counts as expensive.
_CHEAP_SIZE_MAX = 64

_FilterKey = tuple[int, int, SqlFilter]


@dataclass(slots=True, eq=False)
class _Prefetched:
    """The judged messages for the receives of one group with the same filter."""

    judged: Judged = NOTHING_JUDGED
    left: int = 0  # accepted messages that no receive has taken yet
    under_way: int = 0  # the sum of the batch sizes of receives that are not answered yet
    taken: int = 0  # the sum of the batch sizes of all receives so far
    is_all: bool = False  # all messages that the group may read next are judged
    work: Work = field(default_factory=Work)
    task: asyncio.Task[None] | None = None


class FilterPrefetch:
    """Judges messages with the SQL filters of this server's receives."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._cache: LruCache[_FilterKey, _Prefetched] = LruCache(_CACHE_BYTES)
        self._in_use: dict[_FilterKey, tuple[_Prefetched, int]] = {}
        self._cheap, self._expensive = asyncio.Semaphore(1), asyncio.Semaphore(1)

    async def ask(self, request: Receive) -> Receive:
        """The receive with its filter's results for the next messages. The caller must call `answered` afterwards.

        If no message was accepted, the receive moves past the range that the filter refused.
        """
        assert isinstance(request.wanted, SqlFilter), "the database applies other filters"
        key = _filter_key(request)
        ahead = self._acquire(key)
        try:
            judged = await self._judged_for(ahead, request)
        except BaseException:
            self._release(key)
            raise
        ahead.under_way += request.batch_size
        return replace(request, judged=judged)

    def answered(self, request: Receive, granted: int) -> None:
        """The receive has ended, with so many granted messages."""
        key = _filter_key(request)
        ahead, _ = self._in_use[key]
        ahead.under_way -= request.batch_size
        if granted < request.batch_size:
            # Another server has read some of the messages, or the group was reset.
            ahead.left = 0
        self._release(key)

    async def _judged_for(self, ahead: _Prefetched, request: Receive) -> Judged:
        # Messages of a higher priority may have arrived; they are granted before the judged ones.
        if ahead.left < request.batch_size or ahead.judged.behind or MessageType.PRIORITY in request.topic.accepts:
            # All receives that wait for this task continue at the same moment, so they share one transaction.
            await asyncio.shield(self._prefetch_task(ahead, request))
        ahead.left -= request.batch_size
        ahead.taken += request.batch_size
        if not ahead.is_all and ahead.left < _RECEIVES_AHEAD * request.batch_size:
            self._prefetch_task(ahead, request)
        return ahead.judged

    def _prefetch_task(self, ahead: _Prefetched, request: Receive) -> asyncio.Task[None]:
        """The running prefetch, or a new one."""
        if ahead.task is None or ahead.task.done():
            ahead.task = asyncio.get_running_loop().create_task(self._prefetch(ahead, request))
            ahead.task.add_done_callback(_retrieve_exception)
        return ahead.task

    async def _prefetch(self, ahead: _Prefetched, request: Receive) -> None:
        assert isinstance(request.wanted, SqlFilter)
        async with self._cheap if request.wanted.size <= _CHEAP_SIZE_MAX else self._expensive:
            under_way = ahead.under_way
            enough = under_way + 2 * _RECEIVES_AHEAD * request.batch_size
            ahead.work.start_again()
            query = partial(filter_fetch.fetch, request=request, known=ahead.judged, enough=enough, work=ahead.work)
            taken_before = ahead.taken
            found: FilterResults = await self._reader.read_then(query, partial(filter_fetch.judge, work=ahead.work))
        ahead.judged, ahead.is_all = found.judged, found.is_all
        accepted = sum(len(each.accepted) for each in found.judged.ranges.values())
        ahead.left = accepted - under_way - (ahead.taken - taken_before)

    def _acquire(self, key: _FilterKey) -> _Prefetched:
        ahead, users = self._in_use.get(key, (None, 0))
        if ahead is None:
            ahead = self._cache.get(key) or _Prefetched()
        self._in_use[key] = ahead, users + 1
        return ahead

    def _release(self, key: _FilterKey) -> None:
        ahead, users = self._in_use[key]
        if users > 1:
            self._in_use[key] = ahead, users - 1
            return
        del self._in_use[key]
        self._cache.put(key, ahead, _BYTES_EACH + key[2].memory)


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Retrieve the exception of a failed prefetch, so that asyncio does not log it. Receives that wait raise it."""
    if not task.cancelled():
        task.exception()


def _filter_key(request: Receive) -> _FilterKey:
    assert isinstance(request.wanted, SqlFilter)
    return request.group.group_id, request.topic.topic_id, request.wanted
