"""A pull consumer with a listener, which it calls by the service of queue push consumers (requirement E18).

The pull consumer still fetches, seeks and pauses. The answers of the listener have the same effects as with a
QueuePushConsumer: a failed message is handed back to the server and is delivered again by the group's retry topic, and
the progress of a queue is its first unfinished message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from popclient._arguments import MILLISECOND, as_timedelta, require_whole
from popclient._consume.concurrently import ConsumeConcurrentlyService
from popclient._consume.context import ConsumeContext, QueueListener, thread_name
from popclient._consume.listener import OrderlyListener, consume_of
from popclient._consume.process_queue import ProcessQueue
from popclient._consume.statistics import Statistics
from popclient._engine.clock import LoopClock, PeriodicTasks
from popclient._engine.interceptors import InterceptorChain
from popclient._engine.runner import MakeRunner
from popclient._pull.core import PullConsumerCore
from popclient._pull.fetch import Fetcher
from popclient._queues.subscription import retry_topic
from popclient._tasks import begin_task
from popclient._tracing import TracingInterceptor
from popclient._version import log
from popclient.errors import ClientClosed, NotFound, PopError
from popclient.message import MessageQueue, MessageView
from popproto.v2 import definition_pb2 as pb

COMMIT_EVERY: Final = 5.0  # seconds
TAKE_WITHIN: Final = 1.0  # seconds until it looks again for queues that it lost to other members


class Listening(NamedTuple):
    """How a pull consumer's listener is called; see `PullConsumer.consume`."""

    listener: Any
    consume_threads: int
    consume_message_batch_max_size: int
    consume_timeout: timedelta


class _Owned(NamedTuple):
    """An assigned queue. With another fetcher, another count of resets or another generation it is another one."""

    fetcher: Fetcher
    resets: int
    generation: int
    pq: ProcessQueue


class PullListening:
    """One call of `consume`. Belongs to one event loop."""

    def __init__(self, core: PullConsumerCore, listening: Listening, make_runner: MakeRunner) -> None:
        self._core = core
        group, clock = core.options.group, LoopClock()
        timeout = listening.consume_timeout.total_seconds()
        interceptors = InterceptorChain([TracingInterceptor(core.config, group)])
        self._clock = clock
        self._timeout = timeout
        listener = QueueListener(group, consume_of(listening.listener), timeout, interceptors, clock)
        self._runner = make_runner(thread_name(group), listening.consume_threads, None)
        self._shared = ConsumeContext(
            core.session, group, clock, Statistics(group, clock), self, listener, self._runner, None, broadcasting=False
        )
        self._service = ConsumeConcurrentlyService(
            self._shared,
            broadcasting=False,
            batch_size=listening.consume_message_batch_max_size,
            consume_timeout=timeout,
            owned=self._owned,
        )
        self._queues: dict[MessageQueue, _Owned] = {}
        self._done: dict[MessageQueue, int] = {}
        self._periodic = PeriodicTasks(clock)
        self._changed = asyncio.Event()
        self._logged_missing = ""  # what was logged about a topic that does not exist
        self._ending: asyncio.Task[None] | None = None

    async def run(self, topics: Sequence[str]) -> None:
        """Subscribes, and hands messages over until the consumer is closed. Raises what a retry cannot solve."""
        try:
            await self._core.subscribe([*topics, retry_topic(self._core.options.group)])
            self._periodic.every(COMMIT_EVERY, self._commit)
            self._periodic.every(self._timeout, self._service.clean_expired)
            while await self._room() and not self._core.stopped:
                for fetcher, messages in await self._take():
                    self._submit(fetcher, messages)
        except ClientClosed:
            log.debug("%r is closed, and its listener gets nothing more", self._core)
        finally:
            await self.end()

    async def _take(self) -> list[tuple[Fetcher, list[MessageView]]]:
        """The messages that have arrived. Waits for a topic that was deleted: it may be recreated."""
        try:
            taken = await self._core.take(TAKE_WITHIN, self._core.options.max_cached_messages)
        except NotFound as failure:
            if failure.code != pb.TOPIC_NOT_FOUND:
                raise
            if str(failure) != self._logged_missing:  # only once, because the topic may be missing for long
                log.warning("the listener of group %s waits: %s", self._core.options.group, failure)
            self._logged_missing = str(failure)
            await asyncio.sleep(TAKE_WITHIN)
            return []
        if taken:
            self._logged_missing = ""
        return taken

    def update_offset(self, mq: MessageQueue, offset: int, increase_only: bool) -> None:
        """The queue is consumed up to there."""
        self._done[mq] = max(offset, self._done.get(mq, 0)) if increase_only else offset
        self._changed.set()

    # ---- To the listener ----

    async def _room(self) -> bool:
        """Waits until the listener has room. False if the consumer is closed."""
        options = self._core.options
        while not self._shared.closing:
            self._changed.clear()
            cached = [own.pq.cached for own in self._queues.values()]
            few = sum(each.messages for each in cached) < options.max_cached_messages
            if few and sum(each.bytes for each in cached) < options.max_cached_bytes:
                return True
            await self._changed.wait()
        return False

    def _submit(self, fetcher: Fetcher, messages: list[MessageView]) -> None:
        self._drop_lost_queues()
        mq = fetcher.mq
        own = self._queues.setdefault(
            mq, _Owned(fetcher, fetcher.resets, fetcher.generation, ProcessQueue(self._clock.now()))
        )
        starts = own.pq.put(messages)
        self._service.submit(messages, mq, own.pq, starts)

    def _owned(self) -> list[tuple[MessageQueue, ProcessQueue]]:
        self._drop_lost_queues()
        return [(mq, own.pq) for mq, own in self._queues.items()]

    def _drop_lost_queues(self) -> None:
        """Ignores from now on what the listener answers for queues that went to other members or were reset."""
        for mq, (fetcher, resets, generation, pq) in list(self._queues.items()):
            is_same = fetcher.resets == resets and generation in (0, fetcher.generation)
            if self._core.fetchers.get(mq) is not fetcher or not is_same:
                pq.dropped = True
                del self._queues[mq]
                self._done.pop(mq, None)
                self._changed.set()

    # ---- Progress, and the end ----

    async def _commit(self) -> None:
        self._drop_lost_queues()
        try:
            await self._core.commit_consumed({mq: offset for mq, offset in self._done.items() if mq in self._queues})
        except PopError as failure:
            log.warning("progress of group %s is not committed: %s", self._core.options.group, failure)

    async def end(self) -> None:
        """Begins no more calls of the listener, waits for the running ones, and commits."""
        if self._ending is None:
            self._ending = begin_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        self._shared.closing = True
        self._changed.set()
        await self._periodic.stop()
        await self._runner.idle()
        await self._service.flush()
        await self._commit()
        self._service.stop()
        self._runner.stop()


def listening_of(
    listener: Any,
    *,
    consume_threads: int,
    consume_message_batch_max_size: int,
    consume_timeout: float | timedelta,
) -> Listening:
    """The checked arguments of `consume`. Raises TypeError or ValueError."""
    if not callable(consume_of(listener)):
        raise TypeError(f"listener {listener!r} cannot be called; give a function of messages and context")
    if isinstance(listener, OrderlyListener):
        raise TypeError(
            "an OrderlyListener needs its queues locked, which a pull consumer does not do; use QueuePushConsumer"
        )
    require_whole("consume_threads", consume_threads)
    require_whole("consume_message_batch_max_size", consume_message_batch_max_size)
    timeout = as_timedelta("consume_timeout", consume_timeout, MILLISECOND)
    return Listening(listener, consume_threads, consume_message_batch_max_size, timeout)
