"""Messages that members send back: they are delivered again later, from the group's retry topic."""

from __future__ import annotations

from typing import NamedTuple

from popserver.catalog import lookup
from popserver.catalog.flow import Catalog
from popserver.engine.writer import Writer
from popserver.model.errors import BadRequest, MessageNotFound
from popserver.model.names import RETRY_PREFIX, Resource, owner_of
from popserver.model.retry import check_delay_level
from popserver.model.topic import OFFSET_BITS, QueueName, queue_numbered
from popserver.pulling.rules import check_generation
from popserver.pulling.send_back import SendBack


class HandedBack(NamedTuple):
    """A message as it was pulled; for a retry message its queue and offset in `%RETRY%<group>`.

    `delay_level`: 0 uses the group's intervals, 1 to 18 the delay table; a negative one makes a dead letter.
    `failures_max`: the member's own limit; without it, or if it is negative, it is the group's max attempts minus one.
    """

    queue: QueueName
    offset: int
    delay_level: int = 0
    failures_max: int | None = None


class SendBacks:
    """Takes failed messages back. The first message that is sent back sets the group's mode to PULL."""

    def __init__(self, writer: Writer, catalog: Catalog) -> None:
        self._writer = writer
        self._catalog = catalog

    async def send_back(self, group_name: Resource, client_id: str, failed: HandedBack) -> bool:
        """Send a message back. Returns whether it is a dead letter now; otherwise it is delivered again.

        A repeated call changes nothing. Raises `BadRequest` for a group that consumes message by message, an unknown
        queue, a delay level above 18, and a retry message of another group; also `TopicRecreated`, `MessageNotFound`,
        `ConsumerGroupNotFound`, `TopicNotFound`.
        """
        check_delay_level(failed.delay_level)
        name = failed.queue.topic
        if name.name.startswith(RETRY_PREFIX) and owner_of(name) != group_name:
            raise BadRequest(
                f"topic '{name}' has the retries of another group than '{group_name}'; send the message back to that"
            )
        topic = await self._catalog.known_topic(name, failed.queue.generation)
        if topic is None:
            raise lookup.topic_not_found(name)
        check_generation(topic, failed.queue.generation)
        queue = queue_numbered(topic, failed.queue.number)
        if not 0 <= failed.offset < 1 << OFFSET_BITS:
            raise MessageNotFound(f"a queue cannot have offset {failed.offset}; send the offset that was pulled")
        group = await self._catalog.group(group_name)
        request = SendBack(group, topic, queue, failed.offset, client_id, failed.delay_level, failed.failures_max)
        is_dead_letter = await self._writer.submit(request)
        self._catalog.has_been_used(group)
        return is_dead_letter
