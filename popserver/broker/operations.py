"""What an operator asks for: topics and groups made, changed and removed; single messages and dead letters looked at.

Nothing here is on a message's way, and nothing here makes a topic or a group that was not asked for by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from sqlalchemy import Connection

from popserver.broker.broker import Broker
from popserver.domain.errors import BadRequest, Forbidden, IllegalMessageId
from popserver.domain.group import Group, HistoryLevel, NewGroup, check_intervals, check_max_attempts
from popserver.domain.message import MessageType, StoredMessage, check_types
from popserver.domain.names import (
    Resource,
    check_group,
    check_topic,
    group_of_dead_letter_topic,
    is_system_derived,
)
from popserver.domain.topic import OFFSET_BITS, NewTopic, check_queue_count
from popserver.store import inspection
from popserver.store.catalog import UpdateGroup
from popserver.store.inspection import Counts, DeadLetter, FoundMessage, Lag, Standing, Step, TopicFacts

# The door speaks of what was found without knowing the store.
__all__ = [
    "DeadLetter",
    "FoundMessage",
    "GroupFacts",
    "Lag",
    "Operations",
    "Standing",
    "Status",
    "Step",
    "TopicFacts",
]

PAGE_DEFAULT = 32
PAGE_MAX = 1_000
OFFSET_MAX = (1 << OFFSET_BITS) - 1

T = TypeVar("T")


class GroupFacts(NamedTuple):
    """A group and its lag in every topic it has met."""

    group: Group
    lag: list[Lag]


class Status(NamedTuple):
    """The server at this moment."""

    store: str
    durability: str
    started_at_ms: int
    now_ms: int
    counts: Counts
    parked_polls: int
    connected_clients: int
    lag: list[Lag]


class Operations:
    """An operator's verbs over one broker. Every refusal is a `PopError`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._catalog = broker.catalog
        self._started_at_ms = broker.clock.now_ms()

    async def create_topic(self, new: NewTopic) -> TopicFacts:
        """1 to 1,024 queues; raises `AlreadyExists`, and `NotBuilt` for message types that cannot be sent yet."""
        check_queue_count(new.queue_count)
        check_types(new.accepts)
        await self._catalog.create_topic(new)
        return await self.topic(new.name)

    async def update_topic(
        self, name: Resource, queue_count: int | None, accepts: tuple[MessageType, ...] | None
    ) -> TopicFacts:
        """Add queues, or change what the topic accepts, as in `create_topic`; None leaves a value as it is."""
        _check_own_topic(name)
        if accepts is not None:
            check_types(accepts)
        if queue_count is not None:
            check_queue_count(queue_count)
        await self._catalog.update_topic(name, queue_count=queue_count, accepts=accepts)
        return await self.topic(name)

    async def delete_topic(self, name: Resource) -> None:
        _check_own_topic(name)
        await self._catalog.delete_topic(name)

    async def topic(self, name: Resource) -> TopicFacts:
        check_topic(name)
        return await self._look(lambda conn: inspection.topic_facts(conn, name))

    async def topics(self, namespace: str | None) -> tuple[list[TopicFacts], int]:
        """The first 1,000 topics by name, and how many there are."""
        return await self._look(lambda conn: inspection.list_topics(conn, namespace, PAGE_MAX))

    async def create_group(self, new: NewGroup) -> Group:
        """1 to 1,000 attempts, 1 to 64 intervals of at most 12 h; raises `AlreadyExists`."""
        check_max_attempts(new.retry.max_attempts)
        check_intervals(new.retry.intervals_ms)
        return await self._catalog.create_group(new)

    async def update_group(
        self,
        name: Resource,
        max_attempts: int | None,
        intervals_ms: tuple[int, ...] | None,
        history: HistoryLevel | None,
    ) -> Group:
        """Change a group's attempts, ladder or history; None leaves a value as it is."""
        check_group(name)
        if max_attempts is not None:
            check_max_attempts(max_attempts)
        if intervals_ms is not None:
            check_intervals(intervals_ms)
        return await self._catalog.update_group(UpdateGroup(name, max_attempts, intervals_ms, history))

    async def delete_group(self, name: Resource) -> None:
        check_group(name)
        await self._catalog.delete_group(name)

    async def group(self, name: Resource) -> GroupFacts:
        check_group(name)
        return await self._look(lambda conn: _group_facts(conn, name))

    async def groups(self, namespace: str | None) -> tuple[list[Group], int]:
        """The first 1,000 groups by name, and how many there are."""
        return await self._look(lambda conn: inspection.list_groups(conn, namespace, PAGE_MAX))

    async def peek(
        self, topic: Resource, queue_number: int | None, from_offset: int | None, limit: int
    ) -> list[StoredMessage]:
        """The oldest messages of a topic, or of one queue from an offset on; `limit` 0 is 32, at most 1,000."""
        check_topic(topic)
        page = _page(limit)
        if from_offset is not None and queue_number is None:
            raise BadRequest(f"offset {from_offset} is an offset of one queue; name the queue as well")
        if from_offset is not None and not 0 <= from_offset <= OFFSET_MAX:
            raise BadRequest(f"an offset is 0 to {OFFSET_MAX}, not {from_offset}")
        return await self._look(lambda conn: inspection.peek(conn, topic, queue_number, from_offset, page))

    async def message(self, topic: Resource | None, message_id: str) -> FoundMessage:
        if topic is not None:
            check_topic(topic)
        _check_message_id(message_id)
        return await self._look(lambda conn: inspection.find_message(conn, topic, message_id))

    async def dead_letters(
        self, group: Resource, topic: Resource | None, after_id: int, limit: int
    ) -> list[DeadLetter]:
        """A page of a group's dead letters, oldest first, after the one with the id `after_id`."""
        check_group(group)
        if topic is not None:
            check_topic(topic)
        page = _page(limit)
        return await self._look(lambda conn: inspection.list_dead_letters(conn, group, topic, after_id, page))

    async def dead_letter(self, group: Resource, message_id: str) -> DeadLetter:
        check_group(group)
        _check_message_id(message_id)
        return await self._look(lambda conn: inspection.find_dead_letter(conn, group, message_id))

    async def status(self) -> Status:
        broker = self._broker
        counts, lag = await self._look(
            lambda conn: (inspection.counts(conn), inspection.group_lag(conn, None, PAGE_MAX))
        )
        return Status(
            store=broker.database.name,
            durability=broker.database.durability,
            started_at_ms=self._started_at_ms,
            now_ms=broker.clock.now_ms(),
            counts=counts,
            parked_polls=broker.wakeups.parked,
            connected_clients=len(broker.clients),
            lag=lag,
        )

    async def _look(self, look: Callable[[Connection], T]) -> T:
        return await self._broker.reader.read(look)


def _group_facts(conn: Connection, name: Resource) -> GroupFacts:
    found = inspection.group(conn, name)
    return GroupFacts(found, inspection.group_lag(conn, found.group_id, PAGE_MAX))


def _check_own_topic(name: Resource) -> None:
    """Raise unless the topic is a user's to change: a group's dead-letter topic comes and goes with the group."""
    check_topic(name)
    if is_system_derived(name.name):
        owner = group_of_dead_letter_topic(name)
        way_out = f"; it goes with its group: popmq group delete {owner.name}" if owner else ""
        raise Forbidden(f"topic '{name}' is kept by the server{way_out}")


def _check_message_id(message_id: str) -> None:
    if not message_id.strip():
        raise IllegalMessageId("the message id is blank; name the one that the send or the receive reported")


def _page(limit: int) -> int:
    if not 0 <= limit <= PAGE_MAX:
        raise BadRequest(f"one request lists 1 to {PAGE_MAX} entries, not {limit}; ask for the rest in further ones")
    return limit or PAGE_DEFAULT
