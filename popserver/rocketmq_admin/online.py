"""The consumers that are connected to this server, as RocketMQ's administration asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from popserver.catalog import progress
from popserver.catalog.flow import Catalog
from popserver.clients.clients import Client, Clients
from popserver.engine.clock import Clock
from popserver.engine.reader import Reader
from popserver.filters import Filter
from popserver.filters.subscription import Role, TopicFilter, shown_filter
from popserver.members import locks
from popserver.members.flow import GroupMembers
from popserver.model.errors import BadRequest, NotFound
from popserver.model.group import Model
from popserver.model.names import Resource
from popserver.model.topic import MessageQueue

QUEUES_MAX = 4_096  # of one consumer in an answer


class OnlineConsumer(NamedTuple):
    """A connected consumer and its role."""

    client: Client
    role: Role

    def filters_for(self, topic: Resource | None) -> Sequence[TopicFilter]:
        """Its filter for the topic, or (None) for the first 64 topics."""
        if topic is None:
            return self.role.subscription.filters
        wanted = self.role.filter_of(topic)
        return [] if wanted is None else [shown_filter(topic, wanted)]


class Declared(NamedTuple):
    """The subscription to one topic that connected consumers of a group declare: the filter and the model of the first
    one, and when one of them was seen last."""

    filter: Filter
    model: Model
    last_seen_ms: int


def declared(consumers: Iterable[OnlineConsumer], topic: Resource) -> Declared | None:
    """What those of these consumers that subscribe to the topic declare about it."""
    found = None
    for client, role in consumers:
        wanted = role.filter_of(topic)
        if wanted is not None and found is None:
            found = Declared(wanted, role.model, client.last_seen_ms)
        elif wanted is not None and found is not None and client.last_seen_ms > found.last_seen_ms:
            found = found._replace(last_seen_ms=client.last_seen_ms)
    return found


class OwnedQueue(NamedTuple):
    """A queue of a consumer that owns whole queues; `committed` is the group's progress, None if there is none."""

    topic: Resource
    queue: MessageQueue
    committed: int | None
    is_locked: bool


class OnlineConsumers:
    """Who consumes what, on this server."""

    def __init__(
        self, clients: Clients, catalog: Catalog, group_members: GroupMembers, reader: Reader, clock: Clock
    ) -> None:
        self._clients = clients
        self._catalog = catalog
        self._group_members = group_members
        self._reader = reader
        self._clock = clock

    def of(self, group: Resource | None, topic: Resource | None) -> list[OnlineConsumer]:
        """The consumers of a group, or of any (None), that subscribe to a topic, or to any (None); by group and id."""
        clients = self._clients.here() if group is None else self._clients.consumers_of(group)
        consumers = [OnlineConsumer(each, each.role) for each in clients if each.role is not None]
        wanted = [each for each in consumers if topic is None or each.role.subscribes_to(topic)]
        return sorted(wanted, key=lambda each: (each.role.group, each.client.client_id))

    def alike(self, groups: Iterable[Resource]) -> dict[Resource, bool]:
        """Of each group, whether all its consumers have the same subscription."""
        return {group: self._clients.consumers.is_alike(group) for group in set(groups)}

    def named(self, client_id: str, group: Resource | None) -> OnlineConsumer:
        """The consumer with this id, of this group or (None) of any. Raises `BadRequest` and `NotFound`."""
        if not client_id:
            raise BadRequest("the request names no client; ListConsumerConnection lists the clients of a group")
        found = self._clients.get(client_id)
        role = None if found is None else found.role
        if role is None or found is None or group not in (None, role.group):
            of_group = "" if group is None else f" of group '{group}'"
            raise NotFound(
                f"client '{client_id[:255]}' is no consumer{of_group} that is connected to this server; list them with:"
                " popmq client list (each of several servers has its own list)"
            )
        return OnlineConsumer(found, role)

    async def queues_of(self, consumer: OnlineConsumer) -> list[OwnedQueue]:
        """The queues of a member that owns whole queues, at most 4,096; none for other consumers."""
        membership = consumer.client.membership
        if membership is None:
            return []
        found = [await self._catalog.known_topic(each.topic) for each in membership.filters]
        topics = [each for each in found if each is not None]
        divided = await self._group_members.shares_of(consumer.client.client_id, membership.group.name, topics)
        every = ((topic.name, queue) for topic, share in zip(topics, divided, strict=True) for queue in share)
        shares = list(islice(every, QUEUES_MAX))
        # A member that broadcasts stores its own progress.
        if membership.model is Model.BROADCASTING:
            return [OwnedQueue(topic, queue, None, False) for topic, queue in shares]
        ids, now_ms = [queue.queue_id for _, queue in shares], self._clock.now_ms()
        group_id, client_id = membership.group.group_id, consumer.client.client_id
        read, holders = await self._reader.read(
            lambda conn: (progress.of_queues(conn, group_id, ids), locks.holders(conn, group_id, now_ms))
        )
        own = {queue_id for queue_id, holder in holders.items() if holder == client_id and queue_id in read}
        offsets = {queue_id: each.next_offset for queue_id, each in read.items()}
        return [OwnedQueue(topic, queue, offsets.get(queue.queue_id), queue.queue_id in own) for topic, queue in shares]
