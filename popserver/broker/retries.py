"""Messages that members of groups hand back, to come again later by the group's retry topic."""

from __future__ import annotations

from typing import NamedTuple

from popserver.broker.catalog import Catalog
from popserver.broker.offsets import QueueName
from popserver.broker.writer import Writer
from popserver.domain.errors import BadRequest, MessageNotFound
from popserver.domain.names import RETRY_PREFIX, Resource, owner_of
from popserver.domain.offsets import check_generation, queue_numbered
from popserver.domain.retry import check_delay_level
from popserver.domain.topic import OFFSET_BITS
from popserver.store import catalog as catalog_store
from popserver.store import send_back as store


class HandedBack(NamedTuple):
    """A message as it was pulled; of a retry the place in `%RETRY%<group>`.

    `delay_level`: 0 by the group's intervals, 1 to 18 by the delay table, negative a dead letter. `failures_max`: the
    member's own limit; absent or negative it is the group's max attempts less one.
    """

    queue: QueueName
    offset: int
    delay_level: int = 0
    failures_max: int | None = None


class Retries:
    """Takes back what failed. The first message that is handed back fixes the group's mode to PULL."""

    def __init__(self, writer: Writer, catalog: Catalog) -> None:
        self._writer = writer
        self._catalog = catalog

    async def send_back(self, group_name: Resource, client_id: str, failed: HandedBack) -> bool:
        """Whether the message is a dead letter now; otherwise it comes again. Repeated it changes nothing.

        Raises `BadRequest` for a group that consumes message by message, a queue that is not there, a delay level
        beyond the last and another group's retry; `MadeAnew`, `MessageNotFound`, `ConsumerGroupNotFound`,
        `TopicNotFound`.
        """
        check_delay_level(failed.delay_level)
        name = failed.queue.topic
        if name.name.startswith(RETRY_PREFIX) and owner_of(name) != group_name:
            raise BadRequest(
                f"topic '{name}' holds the retries of another group than '{group_name}'; hand back to that"
            )
        topic = await self._catalog.known_topic(name, failed.queue.generation)
        if topic is None:
            raise catalog_store.topic_not_found(name)
        check_generation(topic, failed.queue.generation)
        place = queue_numbered(topic, failed.queue.number)
        if not 0 <= failed.offset < 1 << OFFSET_BITS:
            raise MessageNotFound(f"offset {failed.offset} is none that a queue has; name the one that was pulled")
        group = await self._catalog.group(group_name)
        wish = store.SendBack(group, topic, place, failed.offset, client_id, failed.delay_level, failed.failures_max)
        is_dead_letter = await self._writer.submit(wish)
        self._catalog.has_been_used(group)
        return is_dead_letter
