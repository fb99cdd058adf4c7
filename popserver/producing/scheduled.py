"""Delayed messages: they enter their queues when they are due; until then they can be taken back."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from popserver.catalog.flow import Catalog
from popserver.catalog.lookup import topic_not_found
from popserver.database.notifications import PENDING
from popserver.engine.clock import Calendar, Clock
from popserver.engine.reader import Reader
from popserver.engine.timers import DueTimer
from popserver.engine.wakeups import Wakeups, Woken
from popserver.engine.writer import Writer
from popserver.messages.pending_messages import PendingRow, first_due_ms
from popserver.model import handles
from popserver.model.errors import BadRequest, PopError
from popserver.model.message import Message
from popserver.model.names import Resource
from popserver.model.retry import SECOND_MS
from popserver.model.topic import MessageType
from popserver.producing import enqueue, pending

RETRY_MS = 1 * SECOND_MS  # after a failure of the database
LOCKED_PAUSE_MS = 5  # if another server has locked all due messages

log = structlog.get_logger("popserver.pending")


class Pending:
    """Moves delayed messages into their queues when they are due."""

    def __init__(
        self, reader: Reader, writer: Writer, catalog: Catalog, clock: Clock, wakeups: Wakeups, key_window_ms: int
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._catalog = catalog
        self._wakeups = wakeups
        self._clock = Calendar(clock)  # a delivery timestamp is a time of day
        self._key_window_ms = key_window_ms
        self._next: tuple[int, int] | None = None  # the earliest known delayed message: when it is due, its topic id
        self._sleeper = DueTimer(self._clock, self._enter)
        writer.effects.on_due(PENDING, self._sleeper)
        self._looks_back = False

    async def start(self) -> None:
        """Start with the earliest delayed message, which may have become due while no server ran."""
        self._sleeper.expect(await self._reader.look_up(first_due_ms))

    def expect(self, topic_id: int, due_ms: int) -> None:
        """Note the topic of a message that is due at `due_ms`. The timer gets only the time, by the commit."""
        if self._next is None or due_ms < self._next[0]:
            self._next = due_ms, topic_id

    def check_due(self) -> None:
        """Search for due messages of which this server got no notification; some may be stored after their time."""
        self._looks_back = True
        self._sleeper.check_due()

    async def idle(self) -> None:
        await self._sleeper.idle()

    async def close(self) -> None:
        await self._sleeper.close()

    async def recall(self, topic_name: Resource, handle: str) -> str:
        """Take a delayed message back by its recall handle. Returns its message id.

        Raises `BadRequest` for a malformed handle or a handle of another topic, `MessagePropertyConflictWithType` for a
        message that is not delayed, `TooLate` for one that is in its queue, `MessageNotFound` for all others.
        """
        asked = handles.decode_recall(handle)
        if asked.topic != topic_name.name:
            raise BadRequest(
                f"the recall handle is of topic '{asked.topic[:64]}', not of '{topic_name}'; send that topic"
            )
        topic = await self._catalog.known_topic(topic_name)
        if topic is None:
            raise topic_not_found(topic_name)
        await self._writer.submit(pending.RecallPending(topic, asked.message_id, asked.deliver_at_ms))
        return asked.message_id

    async def cancel(self, topic_name: Resource, message_ids: Sequence[str]) -> list[str]:
        """Remove delayed and half messages. Returns the ids of those that were pending."""
        topic = await self._catalog.known_topic(topic_name)
        if topic is None:
            raise topic_not_found(topic_name)
        return await self._writer.submit(pending.CancelPending(topic, message_ids))

    async def _enter(self) -> int | None:
        now_ms = self._clock.now_ms()
        if self._next is not None and self._next[0] <= now_ms:
            # The topic's polls receive in the same transaction: woken after the commit, they would need a second one.
            self._wakeups.wake(self._next[1], Woken.AHEAD)
            self._next = None
        step = enqueue.EnqueueDue(self._key_window_ms, self._looks_back)
        self._looks_back = False
        try:
            done = await self._writer.submit(step)
        except PopError as error:
            self._looks_back |= step.looks_back
            log.warning("delayed messages are late", reason=error.sentence)
            return now_ms + RETRY_MS
        self._count(done.placed)
        if done.next_due_ms is not None and done.next_topic_id is not None:
            self.expect(done.next_topic_id, done.next_due_ms)
        if done.next_due_ms is None or done.entered:
            return done.next_due_ms
        return max(done.next_due_ms, now_ms + LOCKED_PAUSE_MS)

    def _count(self, entered: Sequence[PendingRow]) -> None:
        """Count messages that have entered their queues; as sent only those of users' transactions, not counted yet."""
        meters = self._writer.meters
        for each in entered:
            if each.enqueued:
                meters.sent[each.topic_id, MessageType(each.message_type)].sizes.add(each.size)
            if each.deliver_at_ms is None:
                continue
            timed = meters.timed[each.topic_id]
            timed.entered += 1
            if each.enqueued:
                timed.delays.add(max(0, each.deliver_at_ms - each.stored_at_ms) / 1_000)


def is_pending(message: Message, calendar_ms: int) -> bool:
    """Whether the message enters its queue later. A delayed message whose time has passed does not (protocol 8.2)."""
    if message.message_type is MessageType.TRANSACTION:
        return True
    return message.deliver_at_ms is not None and message.deliver_at_ms > calendar_ms
