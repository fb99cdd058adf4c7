"""What both ways of consuming need shared them, and the one thing both tell the server: that a message has failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from popclient._engine.clock import Clock
from popclient._queues import calls
from popclient._queues.process_queue import ProcessQueue
from popclient._queues.running import Job
from popclient._queues.statistics import Statistics
from popclient._session import Session, log
from popclient.errors import for_caller
from popclient.message import MessageQueue, MessageView

Owned = Callable[[], Sequence[tuple[MessageQueue, ProcessQueue]]]


class ConsumeMessageService(Protocol):
    """Takes what was pulled to the listener."""

    def submit(self, messages: Sequence[MessageView], mq: MessageQueue, pq: ProcessQueue, starts: bool, /) -> None:
        """`messages` were put into `pq`; `starts` as `ProcessQueue.put` has answered."""

    async def clean_expired(self) -> None:
        """Looks after what is with the listener for too long."""

    async def idle(self, mq: MessageQueue, seconds: float, /) -> bool:
        """Has the listener nothing of the queue that must end before somebody else may go on? Waits so long."""

    async def flush(self) -> None:
        """Returns when what the listener has answered is dealt with."""

    def stop(self) -> None:
        """Nothing more is done."""


class NotesProgress(Protocol):
    """An OffsetStore, or whatever else remembers how far a queue is consumed."""

    def update_offset(self, mq: MessageQueue, offset: int, increase_only: bool) -> None: ...


class ConsumeContext:
    """Clock, pool, progress and server, as a ConsumeMessageService sees them.

    run: hands a call of the listener to the pool. max_reconsume_times: None leaves it to the group.
    broadcasting: the group is told of no failure, for the other members have the message too.
    closing: no call of the listener begins any more.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        clock: Clock,
        statistics: Statistics,
        offset_store: NotesProgress,
        run: Callable[[Job], None],
        max_reconsume_times: int | None,
        *,
        broadcasting: bool,
    ) -> None:
        self.clock = clock
        self.statistics = statistics
        self.offset_store = offset_store
        self.run = run
        self.closing = False
        self._session = session
        self._group = group
        self._max_reconsume_times = max_reconsume_times
        self._broadcasting = broadcasting

    def later(self, seconds: float, work: Callable[[], object]) -> None:
        """Does the work in so many seconds, unless the consumer is closing by then (requirement E2)."""
        self.clock.call_later(seconds, lambda: None if self.closing else work())

    def note_progress(self, mq: MessageQueue, offset: int, *, increase_only: bool) -> None:
        """The queue is consumed up to the offset. A store that cannot note it is told again with the next message."""
        try:
            self.offset_store.update_offset(mq, offset, increase_only)
        except Exception:  # noqa: BLE001  a store of the user's may raise anything
            log.exception("%r does not know that %s is consumed up to %d", self.offset_store, mq, offset)

    async def send_back(self, mq: MessageQueue, message: MessageView, delay_level: int) -> bool:
        """Hands a failed message back; False if the server would not take it, which is logged (requirement E9).

        Who broadcasts drops it instead (requirement E11).
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
        except Exception as failure:  # noqa: BLE001  whatever it is, the message is still here
            log.warning("%s is not handed back, it is tried again here: %s", message, for_caller(failure))
            return False
        if dead:
            log.warning("%s has failed for good: it is a dead letter of group %s", message, self._group)
        return True
