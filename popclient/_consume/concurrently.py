"""Concurrent consumption: many batches of a queue are with the listener at once (requirements E1 to E13).

A failed message is handed back to the server, for a later delivery. If that fails too, it stays here, and the listener
gets it again in five seconds: the progress does not pass it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from popclient._consume.context import ConsumeContext, Owned
from popclient._consume.listener import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    Outcome,
    ack_index_of,
    delay_level_of,
)
from popclient._consume.process_queue import ProcessQueue
from popclient._engine.runner import Rejected
from popclient._tasks import Tasks
from popclient._version import log
from popclient.message import MessageQueue, MessageView

LATER: Final = 5.0  # seconds until the next try if the pool or the server does not take it
EXPIRED_AT_ONCE: Final = 16  # late messages of one queue per sweep
EXPIRED_LEVEL: Final = 3  # of the delay table: 10 s


class ConsumeConcurrentlyService:
    """Gives the listener what was pulled, and tells the server and the offset store the outcome.

    broadcasting: nothing is handed back. batch_size: messages per call of the listener. consume_timeout: seconds.
    """

    def __init__(
        self, shared: ConsumeContext, *, broadcasting: bool, batch_size: int, consume_timeout: float, owned: Owned
    ) -> None:
        self._shared = shared
        self._clock = shared.clock
        self._broadcasting = broadcasting
        self._batch_size = batch_size
        self._consume_timeout = consume_timeout
        self._owned = owned
        self._tasks = Tasks()

    # ---- To the listener ----

    def submit(self, messages: Sequence[MessageView], mq: MessageQueue, pq: ProcessQueue, _: bool) -> None:
        """Submits them in batches; a batch that the pool refuses is submitted again later (requirement E5)."""
        size = self._batch_size
        for at in range(0, len(messages), size):
            try:
                self._run(messages[at : at + size], mq, pq)
            except Rejected as rejected:
                log.warning("%d messages of %s wait: %s", len(messages) - at, mq, rejected)
                self._submit_later(messages[at:], mq, pq)
                return

    def _submit_later(self, messages: Sequence[MessageView], mq: MessageQueue, pq: ProcessQueue) -> None:
        self._shared.later(LATER, lambda: self.submit(messages, mq, pq, True))

    def _run(self, messages: Sequence[MessageView], mq: MessageQueue, pq: ProcessQueue) -> None:
        context = ConsumeConcurrentlyContext(mq)

        def begin() -> bool:
            if pq.dropped or self._shared.closing:
                return False
            pq.start(messages, self._clock.now())
            return True

        def ended(outcome: Outcome | None) -> None:
            if outcome is not None:
                self._ended(outcome, messages, context, mq, pq)

        self._shared.listen(messages, context, begin, ended)

    # ---- Results ----

    def _ended(
        self,
        outcome: Outcome,
        messages: Sequence[MessageView],
        context: ConsumeConcurrentlyContext,
        mq: MessageQueue,
        pq: ProcessQueue,
    ) -> None:
        done = done_of(outcome.returned, ack_index_of(context), len(messages))
        self._shared.statistics.consumed(mq.topic, outcome.consumption.seconds, done, len(messages) - done)
        if pq.dropped:  # the queue went to another member, which gets them again
            log.info("the result of %d messages of %s is ignored: the queue was given up", len(messages), mq)
            return
        # The sweep has decided on the late ones meanwhile: the answer of the listener for them is ignored.
        mine = {message.queue_offset for message in pq.claim(messages)}
        good = [message for message in messages[:done] if message.queue_offset in mine]
        bad = [message for message in messages[done:] if message.queue_offset in mine]
        if bad and self._broadcasting:
            log.warning("%d messages of %s failed and are dropped, as broadcasting does: %s", len(bad), mq, bad[0])
            good, bad = good + bad, []
        self._settle(good, mq, pq)
        if bad:
            self._tasks.spawn(self._hand_back(bad, delay_level_of(context), mq, pq))

    async def _hand_back(
        self, messages: Sequence[MessageView], delay_level: int, mq: MessageQueue, pq: ProcessQueue
    ) -> None:
        kept: list[MessageView] = []
        for message in messages:
            if await self._shared.send_back(mq, message, delay_level):
                self._settle([message], mq, pq)
            else:
                message._try_again_here()
                kept.append(message)
        if kept:
            self._shared.later(LATER, lambda: self._try_again(kept, mq, pq))

    def _try_again(self, messages: Sequence[MessageView], mq: MessageQueue, pq: ProcessQueue) -> None:
        """Until now they were claimed: no sweep has handed them back meanwhile."""
        pq.disclaim(messages)
        self.submit(messages, mq, pq, True)

    def _settle(self, messages: Sequence[MessageView], mq: MessageQueue, pq: ProcessQueue) -> None:
        """They are finished: the progress moves to the first message that is left (requirement E13)."""
        if not messages:
            return
        offset = pq.remove(messages, self._clock.now())
        if offset >= 0 and not pq.dropped:
            self._shared.note_progress(mq, offset, increase_only=True)

    # ---- Late messages ----

    async def clean_expired(self) -> None:
        """Hands back what the listener has had for longer than the consume timeout (requirement D10)."""
        for mq, pq in self._owned():
            late = pq.expired(self._clock.now(), self._consume_timeout, EXPIRED_AT_ONCE)
            for message in late:
                log.warning("%s is with the listener for more than %g s", message, self._consume_timeout)
                if self._broadcasting or await self._shared.send_back(mq, message, EXPIRED_LEVEL):
                    self._settle([message], mq, pq)
                else:
                    pq.disclaim([message])

    # ---- The end ----

    async def idle(self, mq: MessageQueue, seconds: float) -> bool:
        """Does not wait for the listener: without order its answers are ignored after its queue is given up."""
        return True

    async def flush(self) -> None:
        """Returns when the failed messages are handed back."""
        await self._tasks.ended()

    def stop(self) -> None:
        self._tasks.cancel()


def done_of(returned: object, ack_index: int, size: int) -> int:
    """How many messages of a batch are done, from its first on (requirement E8).

    >>> done_of(ConsumeConcurrentlyStatus.CONSUME_SUCCESS, 2, 5), done_of(None, 2, 5)
    (3, 0)
    """
    if returned is not ConsumeConcurrentlyStatus.CONSUME_SUCCESS:
        return 0
    return max(0, min(ack_index + 1, size))
