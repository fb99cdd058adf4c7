"""Delayed messages: let into their queues when they are due, taken back before that."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import structlog

from popserver.broker.catalog import Catalog
from popserver.broker.clock import Calendar, Clock
from popserver.broker.reader import Reader
from popserver.broker.sleeper import Sleeper
from popserver.broker.writer import Writer
from popserver.domain import recall
from popserver.domain.errors import BadRequest, PopError
from popserver.domain.message import Message, MessageType
from popserver.domain.names import Resource
from popserver.domain.retry import SECOND_MS
from popserver.store import entering, pending
from popserver.store.catalog import topic_not_found
from popserver.store.notices import PENDING

RETRY_MS = 1 * SECOND_MS  # when the store did not answer
BESIDE_ANOTHER_MS = 5  # when another server was just letting in what is due

log = structlog.get_logger("popserver.pending")


class Pending:
    """Keeps what is due from being late."""

    def __init__(self, reader: Reader, writer: Writer, catalog: Catalog, clock: Clock, key_window_ms: int) -> None:
        self._reader = reader
        self._writer = writer
        self._catalog = catalog
        self._clock = Calendar(clock)  # a delivery timestamp is a time of day
        self._key_window_ms = key_window_ms
        self._sleeper = Sleeper(self._clock, self._enter)
        writer.effects.on_due(PENDING, self._sleeper.tell)
        self._rotation = itertools.count()

    async def start(self) -> None:
        """Take up what fell due while nobody was there."""
        self._sleeper.tell(await self._reader.read(entering.next_due_ms))

    def look(self) -> None:
        """Something may be due of which nobody told this server."""
        self._sleeper.look()

    async def idle(self) -> None:
        await self._sleeper.idle()

    async def close(self) -> None:
        await self._sleeper.close()

    async def recall(self, topic_name: Resource, handle: str) -> str:
        """Take a delayed message back by its recall handle; returns its id.

        Raises `BadRequest` for a handle that is none or of another topic, `MessagePropertyConflictWithType` for a
        message that is not delayed, `TooLate` for one in its queue, `MessageNotFound` for any other.
        """
        asked = recall.decode(handle)
        if asked.topic != topic_name.name:
            raise BadRequest(
                f"the recall handle is of topic '{asked.topic[:64]}', not of '{topic_name}'; name that one"
            )
        topic = await self._catalog.known_topic(topic_name)
        if topic is None:
            raise topic_not_found(topic_name)
        await self._writer.submit(pending.Recall(topic, asked.message_id, asked.deliver_at_ms))
        return asked.message_id

    async def cancel(self, topic_name: Resource, message_ids: Sequence[str]) -> list[str]:
        """Remove pending messages of either kind; returns the ids of those that were there."""
        topic = await self._catalog.known_topic(topic_name)
        if topic is None:
            raise topic_not_found(topic_name)
        return await self._writer.submit(pending.Cancel(topic, message_ids))

    async def _enter(self) -> int | None:
        now_ms = self._clock.now_ms()
        try:
            step = entering.EnterDue(next(self._rotation), self._key_window_ms)
            done = await self._writer.submit(step)
        except PopError as error:
            log.warning("delayed messages wait", reason=error.sentence)
            return now_ms + RETRY_MS
        if done.next_due_ms is None or done.entered:
            return done.next_due_ms
        return max(done.next_due_ms, now_ms + BESIDE_ANOTHER_MS)


def is_pending(message: Message, calendar_ms: int) -> bool:
    """Does it wait outside of any queue? A delayed message whose time has come does not (protocol 8.2)."""
    if message.message_type is MessageType.TRANSACTION:
        return True
    return message.deliver_at_ms is not None and message.deliver_at_ms > calendar_ms
