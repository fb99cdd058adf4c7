"""Orderly consumption: of a queue one batch is with the listener; the next follows its end (requirements F3 to F11).

A queue is consumed only while this consumer has a recent lock of the server on it. A failed batch keeps its place:
after a pause the listener gets the same messages again, before all others of the queue.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from popclient._consume.context import ConsumeContext
from popclient._consume.listener import (
    BY_THE_CONSUMER,
    DEAD_LETTER,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    Outcome,
    suspend_millis_of,
)
from popclient._consume.process_queue import ProcessQueue
from popclient._engine.clock import wait_for
from popclient._engine.runner import Rejected
from popclient._tasks import Tasks
from popclient._version import log
from popclient.listening import ConsumeStatus
from popclient.message import MessageQueue, MessageView

MAX_TIME_CONSUME_CONTINUOUSLY: Final = 60.0  # seconds for one queue, then it is the turn of others (requirement F8)
SOON: Final = 0.01  # seconds
AFTER_FAILURE: Final = 3.0  # seconds, if the pool took nothing or something failed
SUSPEND_MILLIS: Final = (10, 30_000)  # the shortest and the longest pause (requirement F7)
UNLIMITED: Final = -1

HasLock = Callable[[MessageQueue, ProcessQueue], bool]


class ConsumeOrderlyService:
    """Gives the listener one batch of each queue at a time.

    has_lock: whether this consumer has the lock of a queue. None if no lock is needed (requirement F10).
    suspend_millis: the pause after a failure, unless the listener sets another one.
    max_reconsume_times: after so many failures a message becomes a dead letter; -1: never (requirement E16).
    """

    def __init__(
        self,
        shared: ConsumeContext,
        *,
        has_lock: HasLock | None,
        batch_size: int,
        suspend_millis: int,
        max_reconsume_times: int,
    ) -> None:
        self._shared = shared
        self._clock = shared.clock
        self._has_lock = has_lock
        self._batch_size = batch_size
        self._suspend_millis = suspend_millis
        self._max_reconsume_times = max_reconsume_times
        self._turns: defaultdict[MessageQueue, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._ended: defaultdict[MessageQueue, asyncio.Event] = defaultdict(asyncio.Event)
        self._tasks = Tasks()

    def submit(self, messages: Sequence[MessageView], mq: MessageQueue, pq: ProcessQueue, starts: bool) -> None:
        """Starts a run for the queue, unless there is one."""
        if starts:
            self._start(mq, pq)

    def _start(self, mq: MessageQueue, pq: ProcessQueue) -> None:
        self._tasks.spawn(self._consume(mq, pq))

    def _start_later(self, mq: MessageQueue, pq: ProcessQueue, seconds: float) -> None:
        self._shared.later(seconds, lambda: self._start(mq, pq))

    # ---- One run ----

    async def _consume(self, mq: MessageQueue, pq: ProcessQueue) -> None:
        """Batch after batch. Before it ends, it plans the next run if one is needed."""
        self._ended[mq].clear()
        try:
            async with self._turns[mq]:  # the listener of an earlier owner may still work on it
                began = self._clock.now()
                while self._may_continue(mq, pq, began) and await self._next_batch(mq, pq):
                    pass
        except Exception:  # noqa: BLE001  a run that ends without a next one would leave the queue for good
            log.exception("%s waits %g s: the result of its last batch could not be processed", mq, AFTER_FAILURE)
            pq.rollback()
            self._start_later(mq, pq, AFTER_FAILURE)
        finally:
            self._ended[mq].set()

    def _may_continue(self, mq: MessageQueue, pq: ProcessQueue, began: float) -> bool:
        if pq.dropped or self._shared.closing:
            return False
        if self._has_lock is not None and not self._has_lock(mq, pq):  # it was taken up again, or by another member
            return False
        if self._clock.now() - began > MAX_TIME_CONSUME_CONTINUOUSLY:
            self._start_later(mq, pq, SOON)
            return False
        return True

    async def _next_batch(self, mq: MessageQueue, pq: ProcessQueue) -> bool:
        """Whether the next batch follows at once."""
        if not (messages := pq.take(self._batch_size, self._clock.now())):
            return False
        context = ConsumeOrderlyContext(mq)
        outcome = await self._listen(messages, context, pq)
        if outcome is None:
            pq.consume_again(messages)
            if not (pq.dropped or self._shared.closing):
                self._start_later(mq, pq, AFTER_FAILURE)
            return False
        failed = len(messages) if outcome.consumption.status is not ConsumeStatus.SUCCESS else 0
        self._shared.statistics.consumed(mq.topic, outcome.consumption.seconds, len(messages) - failed, failed)
        pause = await self._settle(outcome, messages, context, mq, pq)
        if pause is not None:
            self._start_later(mq, pq, pause)
        return pause is None

    async def _listen(
        self, messages: Sequence[MessageView], context: ConsumeOrderlyContext, pq: ProcessQueue
    ) -> Outcome | None:
        """How the listener ended; None if it was not called."""
        ended: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()

        def begin() -> bool:
            if self._shared.closing or pq.dropped:
                return False
            return self._has_lock is None or pq.may_consume(self._clock.now())  # it may have waited for a thread

        def end(outcome: Outcome | None) -> None:
            if not ended.done():
                ended.set_result(outcome)

        try:
            self._shared.listen(messages, context, begin, end)
        except Rejected as rejected:
            log.warning("%s waits: %s", context.message_queue, rejected)
            return None
        return await ended

    # ---- The result of a batch ----

    async def _settle(
        self,
        outcome: Outcome,
        messages: Sequence[MessageView],
        context: ConsumeOrderlyContext,
        mq: MessageQueue,
        pq: ProcessQueue,
    ) -> float | None:
        """The pause before the queue goes on, in seconds; None if it goes on at once."""
        status = outcome.returned
        if not isinstance(status, ConsumeOrderlyStatus):
            status = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        failed = status is ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        if failed and await self._comes_again(messages, mq):
            pq.consume_again(messages)
            return self._pause(context)
        if status is ConsumeOrderlyStatus.ROLLBACK and not context.auto_commit:
            pq.rollback()
            return self._pause(context)
        if context.auto_commit and status in (ConsumeOrderlyStatus.COMMIT, ConsumeOrderlyStatus.ROLLBACK):
            log.warning("%s counts as SUCCESS: the listener of %s has not switched auto_commit off", status, mq)
        if context.auto_commit or status is ConsumeOrderlyStatus.COMMIT:
            self._commit(mq, pq)
        return None  # without a commit the batch stays open

    def _commit(self, mq: MessageQueue, pq: ProcessQueue) -> None:
        offset = pq.commit()
        if offset >= 0 and not pq.dropped:
            self._shared.note_progress(mq, offset, increase_only=False)

    async def _comes_again(self, messages: Sequence[MessageView], mq: MessageQueue) -> bool:
        """Counts the failure. False if all of them have failed too often and are dead letters now."""
        again = False
        for message in messages:
            failed_before = max(message.delivery_attempt - 1, 0)
            is_last = self._max_reconsume_times != UNLIMITED and failed_before >= self._max_reconsume_times
            if not (is_last and await self._shared.send_back(mq, message, DEAD_LETTER)):
                message._try_again_here()
                again = True
        return again

    def _pause(self, context: ConsumeOrderlyContext) -> float:
        asked = suspend_millis_of(context)
        shortest, longest = SUSPEND_MILLIS
        millis = self._suspend_millis if asked == BY_THE_CONSUMER else asked
        return max(shortest, min(millis, longest)) / 1_000

    # ---- Giving up ----

    async def idle(self, mq: MessageQueue, seconds: float) -> bool:
        """Whether the listener has no message of the queue. Waits for that so long (requirement F6)."""
        if not self._turns[mq].locked():
            return True
        return await wait_for(self._clock, self._ended[mq], seconds) and not self._turns[mq].locked()

    async def clean_expired(self) -> None:
        """Does nothing: if messages were taken from an orderly listener, later ones would overtake them."""

    async def flush(self) -> None:
        await self._tasks.ended()

    def stop(self) -> None:
        self._tasks.cancel()
