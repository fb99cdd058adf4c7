"""An operator's actions on a group's progress: read its lag, move it, skip a message, clone it, import offsets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection

from popserver.administration import why
from popserver.catalog import facts as catalog_facts
from popserver.catalog import lookup, topics
from popserver.catalog.flow import Catalog
from popserver.catalog.paused import PausedGroups
from popserver.catalog.progress import queues_in_topic
from popserver.clients.clients import Clients
from popserver.cluster.servers import Servers
from popserver.engine.clock import Clock
from popserver.engine.reader import Reader
from popserver.engine.writer import Writer
from popserver.members.flow import GroupMembers
from popserver.messages import read
from popserver.model.errors import BadRequest, IllegalMessageId
from popserver.model.group import Group, Mode
from popserver.model.message import check_lite_topic, check_message_group
from popserver.model.names import Resource, check_group, check_topic, is_system_derived
from popserver.model.states import State
from popserver.model.times import moment
from popserver.model.topic import MessageType, QueueName, Topic, queue_numbered
from popserver.progress import rules
from popserver.progress.accumulation import Accumulation, GroupAccumulation, accumulation, of_lite_topic
from popserver.progress.clone import Clone, topic_ids
from popserver.progress.lag import QueueLag, queue_lag
from popserver.progress.pause import SetPause
from popserver.progress.reset import Reset, check, plan
from popserver.progress.rules import Goal, MovedOffset, Target
from popserver.progress.skip import Skip
from popserver.progress.time_span import QueueTimeSpan, time_spans
from popserver.progress.unsubscribe import Unsubscribe
from popserver.pulling.offsets import NamedOffset

# Exported for `rpc`, which must not import statements.
__all__ = ["LAG_MAX", "OFFSETS_MAX", "GroupProgress", "QueueLag"]

LAG_MAX = 4_096  # queues in one answer
OFFSETS_MAX = 4_096  # in one import


class SkippedMessage(NamedTuple):
    """A skipped message's former state, and who held it until when, if it was held."""

    state: State
    client_id: str
    held_until_ms: int | None


class GroupProgress:
    """An operator's actions on progress. Every refusal is a `PopError` and changes nothing."""

    def __init__(
        self,
        reader: Reader,
        writer: Writer,
        catalog: Catalog,
        clock: Clock,
        paused: PausedGroups,
        clients: Clients,
        group_members: GroupMembers,
        servers: Servers,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._catalog = catalog
        self._clock = clock
        self._paused = paused
        self._clients = clients
        self._group_members = group_members
        self._servers = servers

    async def lag(self, group_name: Resource, topic_name: Resource | None) -> tuple[list[QueueLag], int]:
        """The first 4,096 queues in which the group has progress, and how many there are."""
        check_group(group_name)
        now_ms = self._clock.now_ms()

        def query(conn: Connection) -> tuple[list[QueueLag], int]:
            group = catalog_facts.group(conn, group_name)
            topic_id = None if topic_name is None else _topic(conn, topic_name).topic_id
            return queue_lag(conn, group, topic_id, now_ms, LAG_MAX)

        return await self._reader.read(query)

    async def accumulation(self, group_name: Resource, topic_names: Sequence[Resource]) -> GroupAccumulation:
        """How many messages the group has not consumed, in these topics or (none) in all; lists up to 1,000 topics."""
        _check(group_name, topic_names)
        return await self._reader.read(lambda conn: accumulation(conn, group_name, topic_names))

    async def accumulation_of_lite_topic(
        self, group_name: Resource, topic_names: Sequence[Resource], lite_topic: str
    ) -> Accumulation:
        """How many messages of a lite topic the group has not consumed, in one of these topics or (none) of all; counts
        up to 1,000."""
        _check(group_name, topic_names)
        return await self._reader.read(lambda conn: of_lite_topic(conn, group_name, topic_names, lite_topic))

    async def time_spans(self, group_name: Resource, topic_names: Sequence[Resource]) -> list[QueueTimeSpan]:
        """When the messages around the group's progress were stored, in these topics or (none) in all.

        For the first 4,096 queues, and one more if there are more.
        """
        _check(group_name, topic_names)
        return await self._reader.read(lambda conn: time_spans(conn, group_name, topic_names))

    async def unsubscribe(self, group_name: Resource, topic_name: Resource) -> None:
        """Remove the group from the topic, with its progress and its holds there; its dead letters stay.

        Raises `NotFound` if the group does not consume the topic. Raises `BadRequest` while a consumer of the topic is
        connected to this server or owns queues of it, because it would subscribe again; and, while other servers run,
        if the group holds a message of the topic. A consumer of another server that holds none is not noticed.
        """
        check_group(group_name)
        group, topic = await self._catalog.for_receipt(group_name, topic_name)
        client_ids = await self._subscribers(group_name, topic_name)
        if client_ids:
            raise BadRequest(
                f"consumers of group '{group_name}' are connected and subscribe to topic '{topic_name}', such as"
                f" {min(client_ids)}, {len(client_ids)} in all; stop them, or let them unsubscribe, and repeat the"
                " request"
            )
        await self._writer.submit(Unsubscribe(group, topic, ends_holds=not self._servers.others))

    async def reset(
        self,
        group_name: Resource,
        topic_name: Resource,
        number: int | None,
        to: Target,
        *,
        dry_run: bool,
        force: bool = False,
    ) -> list[MovedOffset]:
        """Move the group's progress in one queue or (None) in all queues of the topic. `dry_run` changes nothing.

        In a topic that the group has not read, for instance after a mistyped name, a reset would make lag that no
        consumer works off. It is refused with `BadRequest` unless `force` is set.

        Returns the old and new offsets. Raises `IllegalOffset` for an offset outside the queue, `TooManyRequests` while
        a user's own transaction acks one of the messages.
        """
        group, topic = await self._catalog.for_receipt(group_name, topic_name)
        queues = topic.queues if number is None else (queue_numbered(topic, number),)
        if not force and not await self._reader.read(
            lambda conn: queues_in_topic(conn, group.group_id, topic.topic_id)
        ):
            raise BadRequest(
                f"consumer group '{group_name}' has not read topic '{topic_name}'; check the names, or let it"
                " begin there with the field force of popmq.v1.Admin/ResetOffsets (popmq group reset --force)"
            )
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
        # First, because a refused request must not create the group.
        await self._reader.read(lambda conn: check(conn, goals))
        group = await self._catalog.group(group_name)
        request = Reset(group, goals, not_of_pops=True)
        return await self._writer.submit(request)

    async def pause(
        self, group_name: Resource, topic_name: Resource | None, message_group: str | None, *, paused_by: str
    ) -> None:
        """Stop deliveries to the group: in one topic or (None) in all, or only of one message group there.

        When this returns, no message is granted by this server any more; holds stay. Pausing twice changes nothing.
        Raises `BadRequest` for a message group of a group of mode PULL, or one that has not received from the topic.
        """
        request = await self._of_pause(group_name, topic_name, message_group, paused_by)
        if message_group is not None:
            await self._set_pause(request)
            return
        with self._paused.beginning(request.group.group_id, request.topic_ids):
            await self._set_pause(request)

    async def resume(self, group_name: Resource, topic_name: Resource | None, message_group: str | None) -> None:
        """End the pause that was begun with the same arguments. Without such a pause nothing changes."""
        await self._set_pause(await self._of_pause(group_name, topic_name, message_group, None))

    async def _set_pause(self, request: SetPause) -> None:
        try:
            await self._writer.submit(request)
        finally:
            await self._paused.reload()

    async def _of_pause(
        self, group_name: Resource, topic_name: Resource | None, message_group: str | None, paused_by: str | None
    ) -> SetPause:
        check_group(group_name)
        if message_group is None:
            group, topics = await self._reader.read(lambda conn: _to_pause(conn, group_name, topic_name))
            return SetPause(group, topics, None, paused_by)
        group, topics = await self._reader.read(lambda conn: _known(conn, group_name, topic_name))
        topics = [each for each in topics if topic_name is not None or each.is_lite or MessageType.FIFO in each.accepts]
        is_lite = bool(topics) and all(each.is_lite for each in topics)
        (check_lite_topic if is_lite else check_message_group)(message_group)
        if group.mode is Mode.PULL:
            raise BadRequest(
                f"consumer group '{group_name}' consumes whole queues, in order, so a message group cannot be paused"
                " alone; pause the group: leave out the message group"
            )
        if not topics:
            where = "any topic with message groups" if topic_name is None else f"topic '{topic_name}'"
            raise BadRequest(
                f"consumer group '{group_name}' has not received from {where} yet, so message group '{message_group}'"
                " cannot be paused; pause the group: leave out the message group"
            )
        return SetPause(group, topics, message_group, paused_by)

    async def skip(
        self, group_name: Resource, topic_name: Resource | None, message_id: str, *, force: bool = False
    ) -> SkippedMessage:
        """Mark one message as consumed without delivering it, with `force` also one that a consumer holds.

        The former holder's ack is refused with the reason. Raises `BadRequest` with the reason if this is not possible.
        """
        check_group(group_name)
        if not message_id.strip():
            raise IllegalMessageId("the message id is blank; give the id that the send or the receive reported")

        def query(conn: Connection) -> Skip:
            group = catalog_facts.group(conn, group_name)
            topic, key = read.locate(conn, topic_name, message_id)
            return Skip(group, topic.topic_id, key, force)

        request = await self._reader.read(query)
        done = await self._writer.submit(request)
        if not done.is_done:
            when = partial(moment, now_ms=self._clock.now_ms())
            state = why.sentence(done.found._replace(pause=None), when)  # a pause keeps nothing from being skipped
            raise BadRequest(
                f"message '{message_id}' is not skipped for group '{group_name}': it is {state};"
                f" {rules.skip_hint(done.found)}"
            )
        assert done.found.state is not None, "what is skipped had a state"
        state, hold = done.found.state.shown, done.found.hold
        if state is not State.INFLIGHT or hold is None:
            return SkippedMessage(state, "", None)
        return SkippedMessage(state, hold.row.client_id, hold.row.visible_at_ms)

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

    async def _subscribers(self, group: Resource, topic: Resource) -> set[str]:
        """The ids of the group's consumers that subscribe to the topic: those of this server, and members."""
        consumers = self._clients.consumers_of(group)
        here = {each.client_id for each in consumers if each.role is not None and each.role.subscribes_to(topic)}
        members = await self._group_members.of(group)
        return here | {each.client_id for each in members if any(topic == it.topic for it in each.filters)}

    async def _goal(self, name: QueueName, to: Target) -> Goal:
        """The goal for this queue. It does not create a missing topic."""
        topic = await self._catalog.known_topic(name.topic)
        if topic is None:
            raise lookup.topic_not_found(name.topic)
        return Goal(topic, queue_numbered(topic, name.number), to)


def _check(group_name: Resource, topic_names: Sequence[Resource]) -> None:
    check_group(group_name)
    for each in topic_names:
        check_topic(each)


def _topic(conn: Connection, name: Resource) -> Topic:
    check_topic(name)
    return catalog_facts.topic(conn, name)


def _to_pause(conn: Connection, group_name: Resource, topic_name: Resource | None) -> tuple[Group, list[Topic]]:
    """The group, and the named topic if there is one."""
    return catalog_facts.group(conn, group_name), [] if topic_name is None else [_topic(conn, topic_name)]


def _known(conn: Connection, group_name: Resource, topic_name: Resource | None) -> tuple[Group, list[Topic]]:
    """The group, and the topics in which it has progress: the named one, or all except the server's own."""
    group = catalog_facts.group(conn, group_name)
    met = topic_ids(conn, group)
    if topic_name is not None:
        topic = _topic(conn, topic_name)
        return group, [topic] if topic.topic_id in met else []
    known = sorted(topics.topics_by_id(conn, met).values(), key=lambda each: each.name.name)
    return group, [each for each in known if not is_system_derived(each.name.name)]
