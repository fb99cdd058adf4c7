"""The members of groups that own whole queues, with streams at this server (requirements J1, J2, G6).

A consumer is a member on every server once it is stored. Joining and leaving is written in the background from the
state at that moment, so a client that leaves and returns before the write stays a member.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from popserver.catalog import lookup
from popserver.catalog.flow import Catalog
from popserver.database.notifications import MEMBERS, RESETS
from popserver.engine.background import BackgroundTasks
from popserver.engine.reader import Reader
from popserver.engine.writer import Writer
from popserver.filters.subscription import TopicFilter
from popserver.members import locks, rules, sql
from popserver.members.notices import GroupNotices, Listener
from popserver.members.rules import Member
from popserver.model.errors import ConsumerGroupNotFound, PopError
from popserver.model.group import Group, Mode, Model
from popserver.model.names import Resource
from popserver.model.topic import MessageQueue, QueueName, Topic, queue_numbered

IDLE_NAMED_MAX = 5


class Membership(NamedTuple):
    """A client's group, how it shares queues, and its subscriptions."""

    group: Group
    model: Model
    filters: tuple[TopicFilter, ...]


class GroupMembers:
    """Writes which clients join and leave at this server, and reads the members of a group on all servers.

    `is_attached`: whether a client has a stream as a member at this server.
    """

    def __init__(
        self,
        reader: Reader,
        writer: Writer,
        catalog: Catalog,
        background: BackgroundTasks,
        notices: GroupNotices,
        is_attached: Callable[[str], bool],
    ) -> None:
        self.notices = notices
        self._reader = reader
        self._writer = writer
        self._catalog = catalog
        self._background = background
        self._is_attached = is_attached
        self._server_id = ""
        self._here: dict[str, Membership] = {}
        self._refresh = MemberRefresh(reader, background, notices, self._on_missing)
        for kind in (MEMBERS, RESETS):
            writer.effects.on_invalidated(kind, notices.changed)

    async def start(self, server_id: str, *, shared: bool) -> None:
        """Begin. If no other server uses the database, remove all members: they connect and join again."""
        self._server_id = server_id
        if not shared:
            await self._writer.submit(sql.ClearMembers())

    async def join(self, client_id: str, membership: Membership) -> None:
        """Make the client a member; when this returns, every server lists it. Raises `ConsumerGroupNotFound`."""
        before = self._here.get(client_id)
        self._set_membership(client_id, membership)
        try:
            await self._writer.submit(self._join_request(client_id, membership))
        except PopError:
            if self._here.get(client_id) is membership:
                self._set_membership(client_id, before)
            raise
        if before is not None and before.group.group_id != membership.group.group_id:
            self._write_leave(client_id, before)

    def leave(self, client_id: str) -> None:
        """Remove the client, which disconnected or unsubscribed. Does nothing if it is not a member."""
        membership = self._here.get(client_id)
        if membership is not None:
            self._set_membership(client_id, None)
            self._write_leave(client_id, membership)

    def rejoin(self, client_id: str, membership: Membership) -> None:
        """Add the client again: this or another server removed it, but it is still connected."""
        self._set_membership(client_id, membership)
        self._background.submit(client_id, lambda: self._join_again(client_id))

    async def of(self, group: Resource) -> list[Member]:
        """The group's members, sorted by client id. Raises `ConsumerGroupNotFound`."""
        return await self._reader.read(lambda conn: sql.members_of(conn, group))

    async def share_of(self, client_id: str, group: Resource, topic: Topic) -> list[MessageQueue]:
        """The topic's queues that the client must consume (`members.rules.share_of`)."""
        return rules.share_of(client_id, topic, await self.of(group))

    async def shares_of(self, client_id: str, group: Resource, topics: Sequence[Topic]) -> list[list[MessageQueue]]:
        """The queues of each of these topics that the client must consume."""
        return await self._reader.read(lambda conn: rules.shares_of(client_id, topics, sql.members_of(conn, group)))

    async def idle_hint(self, group: Resource) -> str:
        """A sentence about the members without a queue; empty if all have one (requirement J10)."""
        members = await self.of(group)
        names = {topic_filter.topic for member in members for topic_filter in member.filters}
        topics = [topic for name in sorted(names) if (topic := await self._catalog.known_topic(name)) is not None]
        idle = rules.idle(members, topics)
        if not idle:
            return ""
        shown = ", ".join(idle[:IDLE_NAMED_MAX]) + (", …" if len(idle) > IDLE_NAMED_MAX else "")
        queues = ", ".join(f"{len(topic.queues)} of topic '{topic.name}'" for topic in topics) or "none"
        return (
            f"{len(idle)} of the {len(members)} members of group '{group}' have no queue to consume ({shown});"
            f" the queues they share: {queues}; add queues, or run fewer members"
        )

    def _set_membership(self, client_id: str, membership: Membership | None) -> None:
        """Remember the client's membership; None if it is no longer a member."""
        before = self._here.pop(client_id, None)
        if membership is not None:
            self._here[client_id] = membership
            self._refresh.add(membership.group.name, client_id)
        if before is not None and (membership is None or membership.group.name != before.group.name):
            self._refresh.remove(before.group.name, client_id)

    def _on_missing(self, client_id: str, group: Group) -> None:
        """The stored group does not list the client. The group may have been deleted and created again."""
        here = self._here.get(client_id)
        if here is not None and here.group.name == group.name and self._is_attached(client_id):
            self.rejoin(client_id, here._replace(group=group))

    def _write_leave(self, client_id: str, membership: Membership) -> None:
        self._background.submit(client_id, lambda: self._leave_stored(client_id, membership))

    async def _leave_stored(self, client_id: str, left: Membership) -> None:
        here = self._here.get(client_id)
        if here is None or here.group.group_id != left.group.group_id:
            await self._writer.submit(sql.LeaveGroup(left.group, client_id, self._server_id))

    async def _join_again(self, client_id: str) -> None:
        here = self._here.get(client_id)
        if here is None:
            return
        try:
            await self._writer.submit(self._join_request(client_id, here))
        except ConsumerGroupNotFound:
            # The group was deleted meanwhile. If it has been created again, the client joins the new one now; if it is
            # created later, the client joins it then.
            await self._refresh.refresh(here.group.name)

    def _join_request(self, client_id: str, membership: Membership) -> sql.JoinGroup:
        return sql.JoinGroup(membership.group, client_id, self._server_id, membership.model, membership.filters)


class QueueLocks:
    """Queue locks for members that consume in order: one holder at a time, for 60 s from its last renewal.

    The first lock sets the group's mode to PULL.
    """

    def __init__(self, writer: Writer, catalog: Catalog) -> None:
        self._writer = writer
        self._catalog = catalog

    async def lock(self, group_name: Resource, client_id: str, queues: Sequence[QueueName]) -> list[QueueName]:
        """Take or renew locks. Returns the queues that the client has locked now, in the given order.

        Raises `BadRequest` for a group in mode POP and for a queue that does not exist, `ConsumerGroupNotFound` and
        `TopicNotFound`. Then no queue is locked.
        """
        by_name = await self._queues(queues)
        group = await self._catalog.group(group_name)
        await self._catalog.set_group_mode(group, Mode.PULL)
        locked = set(await self._writer.submit(locks.Lock(group, client_id, list(by_name.values()))))
        return [name for name, queue in by_name.items() if queue in locked]

    async def unlock(self, group_name: Resource, client_id: str, queues: Sequence[QueueName]) -> None:
        """Free the queues that the client has locked. Raises as `lock` does, except for the group's mode."""
        by_name = await self._queues(queues)
        group = await self._catalog.group(group_name)
        await self._writer.submit(locks.Unlock(group, client_id, list(by_name.values())))

    async def _queues(self, queues: Sequence[QueueName]) -> dict[QueueName, MessageQueue]:
        """Each queue once. Unlike a receive, a lock does not create a missing topic."""
        found: dict[QueueName, MessageQueue] = {}
        for name in queues:
            topic = await self._catalog.known_topic(name.topic)
            if topic is None:
                raise lookup.topic_not_found(name.topic)
            found[name] = queue_numbered(topic, name.number)
        return found


class MemberRefresh:
    """Compares the members at this server with the stored ones, when a group changes; `on_missing` gets missing ones.

    Another server may have removed a member's row, if the client had a second stream there or moved there for a while.
    A group that is deleted and created again begins without members (requirement J1).
    """

    def __init__(
        self,
        reader: Reader,
        background: BackgroundTasks,
        notices: GroupNotices,
        on_missing: Callable[[str, Group], None],
    ) -> None:
        self._reader = reader
        self._background = background
        self._notices = notices
        self._on_missing = on_missing
        self._here: dict[Resource, set[str]] = {}
        self._listeners: dict[Resource, Listener] = {}

    def add(self, name: Resource, client_id: str) -> None:
        if name not in self._here:
            self._here[name] = set()
            self._listeners[name] = self._notices.listen(name)
            self._listeners[name].open(None, lambda _: self._changed(name))
        self._here[name].add(client_id)

    def remove(self, name: Resource, client_id: str) -> None:
        self._here[name].discard(client_id)
        if not self._here[name]:
            del self._here[name]
            self._notices.leave(self._listeners.pop(name))

    async def refresh(self, name: Resource) -> None:
        """Compare with the stored members. Does nothing while the group does not exist."""
        listed = await self._reader.read(lambda conn: sql.listed(conn, name))
        if listed is not None:
            group, client_ids = listed
            for client_id in sorted(self._here.get(name, set()) - client_ids):
                self._on_missing(client_id, group)

    async def _changed(self, name: Resource) -> None:
        # In the background, and repeated while the database does not answer.
        self._background.submit((name, "roll"), lambda: self.refresh(name))
