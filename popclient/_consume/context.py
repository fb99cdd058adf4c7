"""The parts that both ways of consuming share: calls of the listener, the clock, the progress, and the server.

Both hand failed messages back to the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from popclient._consume.listener import Context, Outcome, consumption_of, status_of
from popclient._consume.process_queue import ProcessQueue
from popclient._consume.statistics import Statistics
from popclient._engine.clock import Clock
from popclient._engine.interceptors import InterceptorChain
from popclient._engine.runner import Runner
from popclient._queues import calls
from popclient._session.session import Session
from popclient._version import log
from popclient.errors import PopError, for_caller
from popclient.message import MessageQueue, MessageView

CONSUME_START_TIME: Final = "CONSUME_START_TIME"  # property: when the listener was called, epoch ms (requirement E6)

Owned = Callable[[], Sequence[tuple[MessageQueue, ProcessQueue]]]


class ConsumeMessageService(Protocol):
    """Gives the listener what was pulled."""

    def submit(self, messages: Sequence[MessageView], mq: MessageQueue, pq: ProcessQueue, starts: bool, /) -> None:
        """`messages` were put into `pq`; `starts` as `ProcessQueue.put` has answered."""

    async def clean_expired(self) -> None:
        """Handles messages that the listener has had for too long."""

    async def idle(self, mq: MessageQueue, seconds: float, /) -> bool:
        """Whether another member may continue with the queue. Waits so long for the listener."""

    async def flush(self) -> None:
        """Returns when the answers of the listener are handled."""

    def stop(self) -> None:
        """Stops all work."""


class NotesProgress(Protocol):
    """An OffsetStore, or another record of the progress of queues."""

    def update_offset(self, mq: MessageQueue, offset: int, increase_only: bool) -> None: ...


class QueueListener:
    """The listener of one consumer.

    consume: takes messages and context. consume_timeout: seconds.
    """

    def __init__(
        self, group: str, consume: Callable[..., Any], timeout: float, interceptors: InterceptorChain, clock: Clock
    ) -> None:
        self._group = group
        self.consume = consume
        self._consume_timeout = timeout
        self._interceptors = interceptors
        self._clock = clock

    def begin(self, messages: Sequence[MessageView]) -> float:
        """The time at which the call begins."""
        stamp = str(self._clock.epoch_ms())
        for message in messages:
            message._wire.user_properties[CONSUME_START_TIME] = stamp
        self._interceptors.before_consume(messages)
        return self._clock.now()

    def end(
        self,
        messages: Sequence[MessageView],
        context: Context,
        began: float,
        returned: Any,
        error: BaseException | None,
    ) -> Outcome:
        if error is not None and not isinstance(error, asyncio.CancelledError):
            log.error("group %s: the listener failed with %s", self._group, messages[0], exc_info=error)
        status = status_of(returned, context)
        consumption = consumption_of(returned, status, error, self._clock.now() - began, self._consume_timeout)
        self._interceptors.after_consume(messages, consumption)
        return Outcome(status, consumption)


class QueueCall:
    """One call of the listener, with messages of one queue.

    may_begin: called right before the call, in the thread or task of the listener. If False, there is no call.
    on_end: called in the event loop with how the call ended; None if there was no call.
    """

    __slots__ = ("_began", "_listener", "_may_begin", "_on_end", "_outcome", "context", "messages")

    def __init__(
        self,
        listener: QueueListener,
        messages: Sequence[MessageView],
        context: Context,
        may_begin: Callable[[], bool],
        on_end: Callable[[Outcome | None], None],
    ) -> None:
        self.messages = tuple(messages)
        self.context = context
        self._listener = listener
        self._may_begin = may_begin
        self._on_end = on_end
        self._began = 0.0
        self._outcome: Outcome | None = None

    def begin(self) -> bool:
        if not self._may_begin():
            return False
        self._began = self._listener.begin(self.messages)
        return True

    def listen(self) -> Any:
        return self._listener.consume(self.messages, self.context)

    def end(self, returned: Any, error: BaseException | None, /) -> None:
        self._outcome = self._listener.end(self.messages, self.context, self._began, returned, error)

    def ended(self, _error: BaseException | None, /) -> None:
        self._on_end(self._outcome)


class ConsumeContext:
    """Listener, clock, progress and server, as a ConsumeMessageService sees them.

    max_reconsume_times: None leaves it to the group.
    broadcasting: failed messages are not handed back, because the other members have them too.
    closing: no more calls of the listener begin.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        clock: Clock,
        statistics: Statistics,
        offset_store: NotesProgress,
        listener: QueueListener,
        runner: Runner,
        max_reconsume_times: int | None,
        *,
        broadcasting: bool,
    ) -> None:
        self.clock = clock
        self.statistics = statistics
        self.offset_store = offset_store
        self.closing = False
        self._listener = listener
        self._runner = runner
        self._session = session
        self._group = group
        self._max_reconsume_times = max_reconsume_times
        self._broadcasting = broadcasting

    def listen(
        self,
        messages: Sequence[MessageView],
        context: Context,
        may_begin: Callable[[], bool],
        on_end: Callable[[Outcome | None], None],
    ) -> None:
        """Calls the listener, see `QueueCall`. Raises Rejected if the runner does not take the call."""
        self._runner.run(QueueCall(self._listener, messages, context, may_begin, on_end))

    def later(self, seconds: float, work: Callable[[], object]) -> None:
        """Does the work after so many seconds, unless the consumer is closing then (requirement E2)."""
        self.clock.call_later(seconds, lambda: None if self.closing else work())

    def note_progress(self, mq: MessageQueue, offset: int, *, increase_only: bool) -> None:
        """The queue is consumed up to the offset. If the store fails, it gets the next offset with the next message."""
        try:
            self.offset_store.update_offset(mq, offset, increase_only)
        except Exception:  # noqa: BLE001  a store of the user's may raise anything
            log.exception("%r has not stored that %s is consumed up to %d", self.offset_store, mq, offset)

    async def send_back(self, mq: MessageQueue, message: MessageView, delay_level: int) -> bool:
        """Hands a failed message back. If the server does not take it, logs that and returns False (requirement E9).

        When broadcasting, the message is dropped instead (requirement E11).
        """
        if self._broadcasting:
            log.warning("%s has failed for good and is dropped, as broadcasting does", message)
            return True
        try:
            dead = await calls.send_back(
                self._session,
                self._group,
                mq,
                message.queue_offset,
                delay_level,
                self._max_reconsume_times,
                message._generation,
            )
        except Exception as failure:  # noqa: BLE001  after any failure the message is still here
            if not (isinstance(failure, PopError) and self._session.give_up(failure)):
                why = for_caller(failure)
                log.warning("%s of group %s is not handed back, it is tried again here: %s", message, self._group, why)
            return False
        if dead:
            log.warning("%s has failed for good: it is a dead letter of group %s", message, self._group)
        return True


def thread_name(group: str) -> str:
    """The name of a consumer's threads, without their number (requirement E1)."""
    return f"ConsumeMessageThread_{group}_"
