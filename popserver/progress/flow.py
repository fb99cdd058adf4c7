"""What an operator does with a group's progress: see its lag, move it, skip a message, clone it, import offsets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sqlalchemy import Connection

from popserver.catalog import facts as catalog_facts
from popserver.catalog import lookup, topics
from popserver.catalog.flow import Catalog
from popserver.engine.clock import Clock
from popserver.engine.reader import Reader
from popserver.engine.writer import Writer
from popserver.inspection import why
from popserver.messages import read
from popserver.model.errors import BadRequest, IllegalMessageId
from popserver.model.group import Group
from popserver.model.names import Resource, check_group, check_topic, is_system_derived
from popserver.model.states import State
from popserver.model.times import moment
from popserver.model.topic import QueueName, Topic, queue_numbered
from popserver.progress import rules
from popserver.progress.clone import Clone, topic_ids
from popserver.progress.lag import QueueLag, queue_lag
from popserver.progress.reset import Reset, check, plan
from popserver.progress.rules import Goal, MovedOffset, Target
from popserver.progress.skip import Skip
from popserver.pulling.offsets import NamedOffset

# Exported for `rpc`, which must not import statements.
__all__ = ["LAG_MAX", "OFFSETS_MAX", "GroupProgress", "QueueLag"]

LAG_MAX = 4_096  # queues in one answer
OFFSETS_MAX = 4_096  # in one import


class GroupProgress:
    """An operator's actions on progress. Every refusal is a `PopError` and changes nothing."""

    def __init__(self, reader: Reader, writer: Writer, catalog: Catalog, clock: Clock) -> None:
        self._reader = reader
        self._writer = writer
        self._catalog = catalog
        self._clock = clock

    async def lag(self, group_name: Resource, topic_name: Resource | None) -> tuple[list[QueueLag], int]:
        """The first 4,096 queues in which the group has progress, and how many there are."""
        check_group(group_name)
        now_ms = self._clock.now_ms()

        def query(conn: Connection) -> tuple[list[QueueLag], int]:
            group = catalog_facts.group(conn, group_name)
            topic_id = None if topic_name is None else _topic(conn, topic_name).topic_id
            return queue_lag(conn, group, topic_id, now_ms, LAG_MAX)

        return await self._reader.read(query)

    async def reset(
        self, group_name: Resource, topic_name: Resource, number: int | None, to: Target, *, dry_run: bool
    ) -> list[MovedOffset]:
        """Move the group's progress in one queue or (None) in all queues of the topic. `dry_run` changes nothing.

        Returns the old and new offsets. Raises `IllegalOffset` for an offset outside the queue, `TooManyRequests` while
        a user's own transaction acks one of the messages.
        """
        group, topic = await self._catalog.for_receipt(group_name, topic_name)
        queues = topic.queues if number is None else (queue_numbered(topic, number),)
        request = Reset(group, [Goal(topic, each, to) for each in queues])
        if dry_run:
            return await self._reader.read(lambda conn: plan(conn, request))
        return await self._writer.submit(request)

    async def import_offsets(self, group_name: Resource, offsets: Sequence[NamedOffset]) -> list[MovedOffset]:
        """Set the progress of a group of mode PULL, or of an unused group, to given offsets.

        All are set, or none. The group is created if the server may create groups.
        """
        if not 1 <= len(offsets) <= OFFSETS_MAX:
            raise BadRequest(f"one request imports 1 to {OFFSETS_MAX} offsets, not {len(offsets)}; use several")
        goals = [await self._goal(each.queue, each.offset) for each in offsets]
        # Before the group is created: a refused request must not create it.
        await self._reader.read(lambda conn: check(conn, goals))
        group = await self._catalog.group(group_name)
        request = Reset(group, goals, not_of_pops=True)
        return await self._writer.submit(request)

    async def skip(self, group_name: Resource, topic_name: Resource | None, message_id: str) -> State:
        """Mark one message as consumed without delivering it. Returns its former state.

        Raises `BadRequest` with the reason if this is not possible.
        """
        check_group(group_name)
        if not message_id.strip():
            raise IllegalMessageId("the message id is blank; give the id that the send or the receive reported")

        def query(conn: Connection) -> Skip:
            group = catalog_facts.group(conn, group_name)
            place = read.find_place(conn, topic_name, message_id)
            topic = _topic(conn, Resource(place.namespace, place.name))
            return Skip(group, topic.topic_id, place.message_key)

        request = await self._reader.read(query)
        done = await self._writer.submit(request)
        if not done.is_done:
            when = partial(moment, now_ms=self._clock.now_ms())
            raise BadRequest(
                f"message '{message_id}' is not skipped for group '{group_name}': it is"
                f" {why.sentence(done.found, when)}; {rules.skip_hint(done.found)}"
            )
        assert done.found.state is not None, "what is skipped had a state"
        return done.found.state.shown

    async def clone(
        self, source_name: Resource, group_name: Resource, topic_name: Resource | None
    ) -> list[MovedOffset]:
        """Give the group the progress of the source, in one topic or (None) in all except the server's own.

        It begins in each queue at the lowest offset that the source has not finished: messages may repeat, none is
        lost. Raises `BadRequest` if the group has progress in such a topic. Creates the group if the server may.
        """
        check_group(source_name)
        source, topics = await self._reader.read(lambda conn: _known(conn, source_name, topic_name))
        if not topics:
            where = "any topic" if topic_name is None else f"topic '{topic_name}'"
            raise BadRequest(f"consumer group '{source_name}' has no progress in {where}; there is nothing to clone")
        group = await self._catalog.group(group_name)
        return await self._writer.submit(Clone(source, group, topics))

    async def _goal(self, name: QueueName, to: Target) -> Goal:
        """Does not create a missing topic."""
        topic = await self._catalog.known_topic(name.topic)
        if topic is None:
            raise lookup.topic_not_found(name.topic)
        return Goal(topic, queue_numbered(topic, name.number), to)


def _topic(conn: Connection, name: Resource) -> Topic:
    check_topic(name)
    return catalog_facts.topic_facts(conn, name).topic


def _known(conn: Connection, group_name: Resource, topic_name: Resource | None) -> tuple[Group, list[Topic]]:
    """The group, and the topics in which it has progress: the named one, or all except the server's own."""
    group = catalog_facts.group(conn, group_name)
    met = topic_ids(conn, group)
    if topic_name is not None:
        topic = _topic(conn, topic_name)
        return group, [topic] if topic.topic_id in met else []
    known = (each for each in topics.list_topics(conn) if each.topic_id in met)
    return group, [each for each in known if not is_system_derived(each.name.name)]
