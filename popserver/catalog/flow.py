"""Topics and groups by name, cached in memory; and which group consumes which topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from popserver.catalog import groups, lookup, topics
from popserver.catalog.closing import CloseQueues
from popserver.database.notifications import GROUP, TOPIC, Invalidation
from popserver.engine.meters import Created, now_s
from popserver.engine.reader import LogLimit, Reader
from popserver.engine.writer import Writer
from popserver.filters.subscription import ClientKind
from popserver.model.errors import BadRequest, TopicNotFound
from popserver.model.group import Group, LiteModel, Mode, NewGroup
from popserver.model.names import (
    Resource,
    check_group,
    check_topic,
    check_topic_to_send,
    dead_letter_topic,
    owner_of,
    retry_topic,
)
from popserver.model.topic import (
    AUTO_CREATE_ACCEPTS,
    SYSTEM_QUEUES,
    MessageQueue,
    MessageType,
    NewTopic,
    Topic,
    check_lite,
)

FIRST_USES_LOGGED = 100  # lines a minute: a client may use a new name in each call

log = structlog.get_logger("popserver.catalog")


class Catalog:
    """Finds topics and groups. With `auto_create` it creates missing ones (requirement N3)."""

    def __init__(self, reader: Reader, writer: Writer, purge: Callable[[], None], *, auto_create: bool) -> None:
        self._reader = reader
        self._writer = writer
        self._purge = purge
        self._auto_create = auto_create
        self._topics: dict[Resource, Topic] = {}
        self._groups: dict[Resource, Group] = {}
        self._subscribed: set[tuple[int, int]] = set()  # group id and topic id
        self._fixed: set[tuple[int, Mode]] = set()  # group id, and the mode that it has
        self._changes = 0
        self._log_limit = LogLimit(lines=FIRST_USES_LOGGED)

    async def topic(self, name: Resource, generation: int = 0) -> Topic:
        """The topic of that name, to consume. Raises `IllegalTopic` or `TopicNotFound`.

        If the cached topic has another generation than the caller's, it is read again (0: the caller has none).
        """
        found = self._remembered(name, generation) or await self._find_topic(name)
        if found is None:
            found = self._topics[name] = await self._make_topic(name)
        return found

    async def topic_to_route(self, name: Resource) -> Topic:
        """The topic of that name, or the topic that its first use would create: a request for a route creates none.

        Most clients request the route before they send their settings. A topic that was created then would take no lite
        messages. Raises `IllegalTopic`, `TopicNotFound`, or `ConsumerGroupNotFound` for a group's own topic.
        """
        found = await self.known_topic(name)
        if found is not None:
            return found
        new = await self._created_on_first_use(name)
        queues = tuple(MessageQueue(0, number) for number in range(new.queue_count))
        return Topic(0, name, queues, new.accepts, 0)

    async def known_topic(self, name: Resource, generation: int = 0) -> Topic | None:
        """As `topic`, but None if the topic does not exist. It is not created."""
        return self._remembered(name, generation) or await self._find_topic(name)

    def _remembered(self, name: Resource, generation: int) -> Topic | None:
        """The cached topic; None if another server may have created it again."""
        found = self._topics.get(name)
        return found if found is None or generation in (0, found.generation) else None

    async def topic_to_send(self, name: Resource) -> Topic:
        """The topic of that name, to send to. Raises `IllegalTopic` or `TopicNotFound`."""
        found = self._topics.get(name)
        if found is None or name.name.startswith("%"):
            check_topic_to_send(name)
            found = await self.topic(name)
        return found

    async def group(self, name: Resource) -> Group:
        """The group of that name. Raises `IllegalConsumerGroup` or `ConsumerGroupNotFound`."""
        found = self._groups.get(name) or await self._find_group(name)
        if found is None:
            changes = self._changes
            found = self._remember_group(name, await self._make_group(name), changes)
        return found

    async def known_group(self, name: Resource) -> Group | None:
        """The same, but None if the group does not exist. It is not created."""
        return self._groups.get(name) or await self._find_group(name)

    async def subscription(
        self, group_name: Resource, topic_name: Resource, kind: ClientKind | None = None
    ) -> tuple[Group, Topic]:
        """The group and the topic, for a consumer of this kind (None: unknown).

        When this returns, the group has progress rows for the topic. Lite consumers and their groups create no topic.
        Raises `TopicNotFound`, and `BadRequest` for a group or a topic that such a consumer cannot use.
        """
        if kind is not None and kind.is_lite:
            await self.lite_group(group_name, await self.bind_topic(topic_name))
        group = self._groups.get(group_name)
        if group is None:
            check_topic(topic_name)  # first, because a refused request creates no group
            group = await self.group(group_name)
        topic = self._topics.get(topic_name) or await self._topic_for(group, topic_name)
        check_gets_messages(kind, group, topic)
        if (group.group_id, topic.topic_id) not in self._subscribed:
            changes = self._changes
            check_subscribed(group, topic)
            await self._writer.submit(groups.Subscribe(group, topic, Mode.POP))
            if changes == self._changes:
                self._subscribed.add((group.group_id, topic.topic_id))
        return group, topic

    async def bind_topic(self, name: Resource) -> Topic:
        """The topic of that name, which has lite topics; it is not created. Raises `TopicNotFound` and `BadRequest`."""
        topic = await self._topic_of_lite(name)
        if not topic.is_lite:
            raise BadRequest(
                f"topic '{name}' takes {' and '.join(topic.accepts)} messages and has no lite topics; create one that"
                " does with: popmq topic create NAME --type LITE"
            )
        return topic

    async def lite_group(self, name: Resource, topic: Topic) -> Group:
        """The group of that name, for lite consumers of this bind topic. A group that was never used becomes SHARED.

        Raises `BadRequest` for a group of ordinary consumers, and for a topic without lite topics.
        """
        group = await self.group(name)
        if group.lite is None:
            group = await self.update_group(groups.UpdateGroup(name, lite=LiteModel.SHARED))
        check_subscribed(group, topic)
        return group

    async def set_group_mode(self, group: Group, mode: Mode) -> None:
        """Set the group's mode at its first use. Raises `BadRequest` if it has the other mode."""
        if group.mode is not mode and (group.group_id, mode) not in self._fixed:
            await self._writer.submit(groups.SetGroupMode(group, mode))
            self._fixed.add((group.group_id, mode))
            self._groups.pop(group.name, None)

    def has_been_used(self, group: Group) -> None:
        """Read the group again at its next use: an operation may have set its mode."""
        if group.mode is None:
            self._groups.pop(group.name, None)

    async def for_receipt(self, group_name: Resource, topic_name: Resource) -> tuple[Group, Topic]:
        """The group and the topic of a receipt handle. Missing ones are not created, because they hold nothing."""
        group = await self.known_group(group_name)
        if group is None:
            raise lookup.group_not_found(group_name)
        topic = self._topics.get(topic_name) or await self._find_topic(topic_name)
        if topic is None:
            raise lookup.topic_not_found(topic_name)
        return group, topic

    async def own_queues(self, group: Group) -> frozenset[int]:
        """The ids of the queues of the group's own topics, which have its dead letters and retries."""
        topics = [await self.known_topic(name) for name in (dead_letter_topic(group.name), retry_topic(group.name))]
        return frozenset(queue.queue_id for topic in topics if topic is not None for queue in topic.queues)

    async def create_topic(self, new: NewTopic) -> Topic:
        """Create a topic. Raises `AlreadyExists`."""
        check_topic_to_send(new.name)
        check_lite(new.name, new.accepts, new.lite_expires_ms)
        changes = self._changes
        topic = await self._writer.meters.creating(Created.TOPIC, self._writer.submit(topics.CreateTopic(new)))
        return self._remember_topic(new.name, topic, changes)

    async def update_topic(
        self,
        name: Resource,
        *,
        queue_count: int | None = None,
        accepts: tuple[MessageType, ...] | None = None,
        lite_expires_ms: int | None = None,
        closed_because: str | None = None,
    ) -> Topic:
        """Add queues, or change the accepted message types, how long lite topics live (0: for ever), or why the topic
        is closed for producers (empty: it is open).

        When it has closed a topic, no server puts a message of a producer into its queues, not even one on its way.
        Raises `BadRequest` for fewer queues, and `TooManyRequests` if producers keep its queues locked: repeat it then.
        """
        if closed_because == "":
            await self._set_queues_closed(name, is_closed=False)
        changes = self._changes
        change = topics.UpdateTopic(name, queue_count, accepts, lite_expires_ms, closed_because)
        topic = await self._writer.submit(change)
        self.forget_topic(name)
        if closed_because is not None:  # opened again: queues may have been added meanwhile
            await self._set_queues_closed(name, is_closed=bool(closed_because))
        return self._remember_topic(name, topic, changes)

    async def _set_queues_closed(self, name: Resource, *, is_closed: bool) -> None:
        """After a closed topic has stopped most producers, and before an opened one lets them in: its queues are locked
        without waiting, and a producer that is refused has read why."""
        await self._writer.submit_again(CloseQueues(name, is_closed))

    async def delete_topic(self, name: Resource) -> None:
        """Delete the topic with its messages. Its name is free at once; its rows are removed in steps."""
        answer = self._writer.submit(topics.DeleteTopic(name))
        answer.add_done_callback(lambda _: self._deleted(topics=[name]))
        await asyncio.shield(answer)

    async def create_group(self, new: NewGroup) -> Group:
        """Create a group. Raises `AlreadyExists`."""
        check_group(new.name)
        changes = self._changes
        group = await self._writer.meters.creating(Created.GROUP, self._writer.submit(groups.CreateGroup(new)))
        return self._remember_group(new.name, group, changes)

    async def update_group(self, change: groups.UpdateGroup) -> Group:
        """Change a group's attempts, retry intervals or history. Current holds keep their end."""
        changes = self._changes
        group = await self._writer.submit(change)
        self._groups.pop(change.name, None)
        return self._remember_group(change.name, group, changes)

    async def delete_group(self, name: Resource) -> None:
        """Delete the group, its progress and its dead letters."""
        answer = self._writer.submit(groups.DeleteGroup(name))
        answer.add_done_callback(
            lambda _: self._deleted(group=name, topics=(dead_letter_topic(name), retry_topic(name)))
        )
        await asyncio.shield(answer)

    def forget_topic(self, name: Resource) -> None:
        """Read the topic again at its next use: it did not exist when it was used."""
        self._topics.pop(name, None)

    def forget_group(self, name: Resource) -> None:
        """Read the group again at its next use: it was changed."""
        self._groups.pop(name, None)

    def invalidate(self, what: Invalidation) -> None:
        """Drop a topic or group from the cache: another server has changed or deleted it."""
        known: dict[str, dict[Resource, Any]] = {TOPIC: self._topics, GROUP: self._groups}
        if what.kind in known:
            self._changes += 1
            known[what.kind].pop(Resource(what.namespace, what.name), None)

    async def check_again(self, group: Group, topic: Topic) -> None:
        """Invalidate what is cached of them if one was changed or deleted: its notification may have been lost."""
        now_group, now_topic = await self._reader.look_up(
            lambda conn: (groups.find_group(conn, group.name), topics.find_topic(conn, topic.name))
        )
        changed = [] if now_topic == topic else [Invalidation(TOPIC, *topic.name)]
        if now_group is None or now_group.group_id != group.group_id:
            changed.append(Invalidation(GROUP, *group.name))
        for each in changed:
            self.invalidate(each)
        self._writer.effects.invalidations(changed)

    def forget_all(self) -> None:
        """Clear the cache: other servers may have changed or deleted any topic or group."""
        self._topics.clear()
        self._groups.clear()
        self.forget_subscriptions()

    def forget_subscriptions(self) -> None:
        """Forget which groups have subscribed, after one was deleted: at their next use they subscribe again."""
        self._changes += 1
        self._subscribed.clear()

    def _deleted(self, *, topics: Iterable[Resource], group: Resource | None = None) -> None:
        """Forget deleted topics or a group. Called also after a failed deletion, because it may have taken effect."""
        self._changes += 1
        for topic in topics:
            self._topics.pop(topic, None)
        if group is not None:
            self._groups.pop(group, None)
        self._purge()

    async def _find_topic(self, name: Resource) -> Topic | None:
        check_topic(name)
        changes = self._changes
        found = await self._reader.read(lambda conn: topics.find_topic(conn, name))
        return None if found is None else self._remember_topic(name, found, changes)

    async def _find_group(self, name: Resource) -> Group | None:
        check_group(name)
        changes = self._changes
        found = await self._reader.read(lambda conn: groups.find_group(conn, name))
        return None if found is None else self._remember_group(name, found, changes)

    def _remember_topic(self, name: Resource, found: Topic, changes: int) -> Topic:
        # Not cached if an invalidation came during the read: the cache would keep an old version.
        if changes == self._changes:
            self._topics[name] = found
        return found

    def _remember_group(self, name: Resource, found: Group, changes: int) -> Group:
        if changes == self._changes:
            self._groups[name] = found
        return found

    async def _topic_for(self, group: Group, name: Resource) -> Topic:
        is_ordinary = group.lite is None or owner_of(name) is not None
        return await (self.topic(name) if is_ordinary else self._topic_of_lite(name))

    async def _topic_of_lite(self, name: Resource) -> Topic:
        """The topic for lite consumers. They create no topic, because it would take no lite messages."""
        topic = await self.known_topic(name)
        if topic is None:
            raise TopicNotFound(
                f"topic '{name}' does not exist, and lite consumers and their groups create none; create it with:"
                f" popmq topic create {name.name} --type LITE"
            )
        return topic

    async def _make_topic(self, name: Resource) -> Topic:
        new = await self._created_on_first_use(name)
        if (owner := owner_of(name)) is not None:
            # A group's own topics are created when they are first used, so that clients can wait for the first message.
            await self.group(owner)
        answer = self._writer.submit(topics.CreateTopic(new, or_find=True))
        made = await self._writer.meters.creating(Created.TOPIC, answer)
        if owner is None and name not in self._topics:
            self._log_first_use(topic=str(name))
        return made

    async def _created_on_first_use(self, name: Resource) -> NewTopic:
        owner = owner_of(name)
        if owner is not None:
            if await self.known_group(owner) is None and not self._auto_create:
                raise lookup.group_not_found(owner)
            return NewTopic(name, SYSTEM_QUEUES)
        if not self._auto_create:
            raise lookup.topic_not_found(name)
        check_topic_to_send(name)
        return NewTopic(name, accepts=AUTO_CREATE_ACCEPTS)

    async def _make_group(self, name: Resource) -> Group:
        if not self._auto_create:
            raise lookup.group_not_found(name)
        answer = self._writer.submit(groups.CreateGroup(NewGroup(name), or_find=True))
        made = await self._writer.meters.creating(Created.GROUP, answer)
        if name not in self._groups:
            self._log_first_use(group=str(name))
        return made

    def _log_first_use(self, **named: str) -> None:
        """So that a misspelled name is found in the log. Not in the cache: of calls at one time, the first logs it."""
        if (suppressed := self._log_limit.dropped(int(now_s() * 1_000))) is not None:
            log.info("created on first use", **named, suppressed=suppressed)


def check_subscribed(group: Group, topic: Topic) -> None:
    """Raise `BadRequest` if a group of lite consumers would read a topic without lite topics."""
    if group.lite is not None and not topic.is_lite and owner_of(topic.name) is None:
        raise BadRequest(
            f"consumer group '{group.name}' is for lite topics, and topic '{topic.name}' takes"
            f" {' and '.join(topic.accepts)} messages; use a topic of type LITE, or another group"
        )


def check_gets_messages(kind: ClientKind | None, group: Group, topic: Topic) -> None:
    """Raise `BadRequest` for an ordinary consumer that would get no message, because it names no lite topics."""
    if group.lite is not None and group.chooses and topic.is_lite and kind in (ClientKind.PUSH, ClientKind.SIMPLE):
        raise BadRequest(
            f"the clients of consumer group '{group.name}' name the lite topics of '{topic.name}' that they get, and"
            " this consumer names none; use a lite consumer (LitePushConsumer, LiteSimpleConsumer), or another group,"
            " which gets all of them"
        )
