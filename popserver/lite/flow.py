"""SyncLiteSubscription: a client names the lite topics that it gets (protocol 8.4)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from weakref import WeakValueDictionary

import structlog

from popserver.catalog import groups, topics
from popserver.catalog.flow import Catalog
from popserver.database.notifications import LITE_CLIENTS, LITE_TOPICS
from popserver.engine.background import BackgroundTasks
from popserver.engine.clock import Clock
from popserver.engine.reader import Reader
from popserver.engine.timers import DueTimer
from popserver.engine.transaction import STEP_ROWS_MAX
from popserver.engine.wakeups import PollKey
from popserver.engine.writer import Writer
from popserver.lite.expire import ExpireLite
from popserver.lite.offsets import OffsetOption
from popserver.lite.registry import LiteClients
from popserver.lite.subscriptions import SILENT_MS, LeaveLite, Synced, SyncLite, TouchLite
from popserver.members.lite_subscriptions import SilentClient, longest_silent_ms, silent_clients
from popserver.messages.lite_topics import EXPIRE_PERIOD_MS, expiring, has_lite_topics
from popserver.model.errors import BadRequest, CommitUnknown, PopError
from popserver.model.group import Group, LiteModel
from popserver.model.message import check_lite_topic
from popserver.model.names import Resource
from popserver.model.retry import SECOND_MS
from popserver.model.topic import Topic

RETRY_MS = 1 * SECOND_MS  # after a failure of the database

log = structlog.get_logger("popserver.lite")


class LiteAction(StrEnum):
    """The action of a client with the lite topics that it names."""

    PARTIAL_ADD = "PARTIAL_ADD"
    PARTIAL_REMOVE = "PARTIAL_REMOVE"
    COMPLETE_ADD = "COMPLETE_ADD"
    COMPLETE_REMOVE = "COMPLETE_REMOVE"


class LiteSubscriptions:
    """The subscriptions of clients to lite topics."""

    def __init__(
        self,
        reader: Reader,
        writer: Writer,
        catalog: Catalog,
        clock: Clock,
        background: BackgroundTasks,
        clients: LiteClients,
        notify: Callable[[str, str], Awaitable[None]],
    ) -> None:
        """`notify` reports to a client (id) that it does not get a lite topic any more; it never fails."""
        self._reader = reader
        self._writer = writer
        self._catalog = catalog
        self._clock = clock
        self._background = background
        self.clients = clients
        self._notify = notify
        self._changing: Counter[PollKey] = Counter()
        self._turns: WeakValueDictionary[tuple[Resource, Resource, str], asyncio.Lock] = WeakValueDictionary()
        self._silence_timer = DueTimer(clock, self._end_silent)
        writer.effects.on_due(LITE_CLIENTS, self._silence_timer)
        self._expired_until = 0, ""  # topic id and name of the last lite topic that the step before has seen
        self._expiry_timer = DueTimer(clock, self._expire)
        writer.effects.on_due(LITE_TOPICS, self._expiry_timer)

    def start(self) -> None:
        """Begin to search for clients that are silent, and for lite topics that expire."""
        self._silence_timer.expect(self._clock.now_ms())
        self._expiry_timer.expect(self._clock.now_ms())

    async def idle(self) -> None:
        await self._silence_timer.idle()
        await self._expiry_timer.idle()

    async def close(self) -> None:
        await self._silence_timer.close()
        await self._expiry_timer.close()

    async def sync(
        self,
        group_name: Resource,
        topic_name: Resource,
        client_id: str,
        action: LiteAction,
        lite_topics: Collection[str],
        offset: OffsetOption | None = None,
    ) -> None:
        """Change a client's lite topics. Blank names are skipped.

        Raises `IllegalLiteTopic`, `LiteSubscriptionQuotaExceeded`, and `BadRequest` for a topic without lite topics, a
        group of ordinary consumers, and a group whose clients get all lite topics if they would choose.
        """
        named = {each for each in lite_topics if each.strip()}
        for each in named:
            check_lite_topic(each)
        # In the order of their arrival: the Node client sends its complete set at the start, and does not wait for the
        # answer before it subscribes. If the set was carried out later, it would end that subscription.
        async with self._turns.setdefault((group_name, topic_name, client_id), asyncio.Lock()):
            await self._sync(group_name, topic_name, client_id, action, named, offset)

    async def _sync(
        self,
        group_name: Resource,
        topic_name: Resource,
        client_id: str,
        action: LiteAction,
        named: set[str],
        offset: OffsetOption | None,
    ) -> None:
        topic = await self._catalog.bind_topic(topic_name)
        group = await self._catalog.lite_group(group_name, topic)
        await self._catalog.subscription(group_name, topic_name)
        if group.lite is LiteModel.WILDCARD:
            _check_wildcard(group, action, named)
            return
        key = PollKey(group.group_id, topic.topic_id, client_id)
        if action is LiteAction.COMPLETE_REMOVE:
            await self._leave(group, topic, client_id)
            return
        has_all = action is LiteAction.COMPLETE_ADD and self._has(group, key, named)
        if not (has_all and await self._writer.submit(TouchLite(key))):
            await self._change(group, topic, key, action, named, offset)

    def left(self, client_id: str) -> None:
        """End the client's subscriptions: it has stopped."""
        for key in self.clients.keys_of(client_id):
            self._background.submit(client_id, lambda key=key: self._end(key, None))  # type: ignore[misc]

    def changed(self, name: Resource) -> None:
        """Read a client's lite topics again: a transaction, perhaps of another server, has changed them."""
        key = _key_of(name)
        if key is not None and not self._changing[key]:
            self._read_in_background(key)

    def shared(self, name: Resource) -> None:
        """Read a client's lite topics again: another client of the group has changed which it has or shares."""
        key = _key_of(name)
        if key is not None:
            self._read_in_background(key)

    def lost(self, name: Resource) -> None:
        """Notify a client of an exclusive group that other clients have lite topics that it had or names."""
        for lite_topic in name.namespace.split(","):
            self._background.submit(f"lost {name.name}", partial(self._notify, name.name, lite_topic))

    def read_all_again(self) -> None:
        """Read the lite topics of all clients again: notifications of other servers may have been lost."""
        for keys in list(self.clients.topics.values()):
            for key in keys:
                self._read_in_background(key)

    def _read_in_background(self, key: PollKey) -> None:
        if self.clients.is_asking(key):
            self._background.submit(f"lite {key}", lambda: self._read_if_needed(key))

    def _has(self, group: Group, key: PollKey, named: set[str]) -> bool:
        """Whether the client has exactly these lite topics. False in an exclusive group: only the database has them."""
        known = self.clients.get(key)
        return known is not None and known.lite_topics == named and group.lite is LiteModel.SHARED

    async def _change(
        self,
        group: Group,
        topic: Topic,
        key: PollKey,
        action: LiteAction,
        named: set[str],
        offset: OffsetOption | None,
    ) -> None:
        adds = action is not LiteAction.PARTIAL_REMOVE
        request = SyncLite(
            group,
            topic,
            key.client_id,
            add=named if adds else (),
            remove=() if adds else named,
            is_complete=action is LiteAction.COMPLETE_ADD,
            offset=offset if action is LiteAction.PARTIAL_ADD else None,
        )
        known = await self.clients.load(key)
        with self.clients.room(len(named - known.lite_topics) if adds else 0, key.client_id), self._changes(key):
            try:
                synced: Synced = await self._writer.submit(request)
            except CommitUnknown:
                self._read_in_background(key)
                raise
        # This also wakes the client: commits between the change and this line did not wake it for the new lite topics.
        client = self.clients.change(key, synced.added, synced.removed)
        client.shares = client.shares or synced.shares

    @contextmanager
    def _changes(self, key: PollKey) -> Iterator[None]:
        """Let this server not read again what it changes itself in the block."""
        self._changing[key] += 1
        try:
            yield
        finally:
            self._changing[key] -= 1
            if not self._changing[key]:
                del self._changing[key]

    async def _leave(self, group: Group, topic: Topic, client_id: str, unless_after_ms: int | None = None) -> None:
        key = PollKey(group.group_id, topic.topic_id, client_id)
        with self._changes(key):
            has_left = await self._writer.submit(LeaveLite(group, topic, client_id, unless_after_ms))
        if has_left:
            self.clients.forget(key)

    async def _end(self, key: PollKey, unless_after_ms: int | None) -> None:
        """End a client's subscriptions in one topic: other clients get its lite topics, or they wait."""
        found_groups, found_topics = await self._reader.read(
            lambda conn: (groups.groups_by_id(conn, [key.group_id]), topics.topics_by_id(conn, [key.topic_id]))
        )
        group, topic = found_groups.get(key.group_id), found_topics.get(key.topic_id)
        if group is not None and topic is not None:
            await self._leave(group.group, topic, key.client_id, unless_after_ms)
        else:
            self.clients.forget(key)

    async def _read_if_needed(self, key: PollKey) -> None:
        if self.clients.is_asking(key):
            await self.clients.read(key)

    async def _end_silent(self) -> int | None:
        """End the subscriptions of silent clients. Returns when the next client may count as silent."""
        now_ms = self._clock.now_ms()
        try:
            found: list[SilentClient] = await self._reader.read(lambda conn: silent_clients(conn, now_ms - SILENT_MS))
            # Together, so that they share a transaction.
            ends = (self._end(PollKey(*each[:3]), now_ms - SILENT_MS) for each in found)
            await asyncio.gather(*ends)
            oldest_ms = await self._reader.read(longest_silent_ms)
        except PopError as error:
            log.warning("ending the lite subscriptions of silent clients is delayed", reason=error.sentence)
            return now_ms + RETRY_MS
        return None if oldest_ms is None else max(oldest_ms + SILENT_MS + 1, now_ms + RETRY_MS)

    async def _expire(self) -> int | None:
        """One step of the expiry. Returns when the next step is due."""
        now_ms = self._clock.now_ms()
        try:
            after = self._expired_until
            found = await self._reader.read(lambda conn: expiring(conn, self._clock.aged_ms(), after))
            removed = await self._writer.submit(ExpireLite(found)) if found else 0
            are_any = await self._reader.read(has_lite_topics)
        except PopError as error:
            log.warning("removing expired lite topics is delayed", reason=error.sentence)
            return now_ms + EXPIRE_PERIOD_MS
        if removed:
            log.info("expired lite topics removed", count=removed)
        if len(found) == STEP_ROWS_MAX:
            # Continue after these: lite topics that stay, because a message is held, must not hide the others.
            self._expired_until = found[-1].topic_id, found[-1].name
            return now_ms
        self._expired_until = 0, ""
        return now_ms + EXPIRE_PERIOD_MS if are_any else None


def _key_of(name: Resource) -> PollKey | None:
    group_id, _, topic_id = name.namespace.partition("/")
    return PollKey(int(group_id), int(topic_id), name.name) if group_id.isdecimal() and topic_id.isdecimal() else None


def _check_wildcard(group: Group, action: LiteAction, named: Collection[str]) -> None:
    """Raise `BadRequest` if a client of a group that gets all lite topics would choose some."""
    if action is LiteAction.PARTIAL_ADD or (action is LiteAction.COMPLETE_ADD and named):
        raise BadRequest(
            f"consumer group '{group.name}' has the lite model WILDCARD: its clients get all lite topics, and cannot"
            f" subscribe to {len(named)} by name; use a group of the model SHARED or EXCLUSIVE"
        )
