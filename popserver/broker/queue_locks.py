"""Locks of queues for members that consume them in order: one holder at a time, for 60 s from its last renewal."""

from __future__ import annotations

from collections.abc import Sequence

from popserver.broker.catalog import Catalog
from popserver.broker.offsets import QueueName
from popserver.broker.writer import Writer
from popserver.domain.group import Mode
from popserver.domain.names import Resource
from popserver.domain.offsets import queue_numbered
from popserver.domain.topic import MessageQueue
from popserver.store import catalog as catalog_store
from popserver.store import queue_locks as store
from popserver.store.queue_locks import LAPSE_MS

__all__ = ["LAPSE_MS", "QueueLocks"]


class QueueLocks:
    """Takes, renews and gives up. The first lock fixes the group's mode to PULL."""

    def __init__(self, writer: Writer, catalog: Catalog) -> None:
        self._writer = writer
        self._catalog = catalog

    async def lock(self, group_name: Resource, client_id: str, queues: Sequence[QueueName]) -> list[QueueName]:
        """Those of the queues that the client has now, in the order given.

        Raises `BadRequest` for a group that consumes message by message and for a queue that is not there,
        `ConsumerGroupNotFound`, `TopicNotFound`; then nothing is locked.
        """
        places = await self._places(queues)
        group = await self._catalog.group(group_name)
        await self._catalog.fix_mode(group, Mode.PULL)
        locked = set(await self._writer.submit(store.Lock(group, client_id, list(places.values()))))
        return [name for name, place in places.items() if place in locked]

    async def unlock(self, group_name: Resource, client_id: str, queues: Sequence[QueueName]) -> None:
        """Free those of the queues that the client has; raises as `lock` does, but for the group's mode."""
        places = await self._places(queues)
        group = await self._catalog.group(group_name)
        await self._writer.submit(store.Unlock(group, client_id, list(places.values())))

    async def _places(self, queues: Sequence[QueueName]) -> dict[QueueName, MessageQueue]:
        """Each queue once. No topic is made for the sake of a lock."""
        places: dict[QueueName, MessageQueue] = {}
        for name in queues:
            topic = await self._catalog.known_topic(name.topic)
            if topic is None:
                raise catalog_store.topic_not_found(name.topic)
            places[name] = queue_numbered(topic, name.number)
        return places
