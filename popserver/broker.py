"""Makes all parts of a broker, and starts and stops them in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from popserver.bulk.flow import Bulk
from popserver.catalog.flow import Catalog
from popserver.catalog.paused import PausedGroups
from popserver.clients.clients import Clients
from popserver.clients.commands import Commands
from popserver.clients.takeover import Takeover
from popserver.clients.waits import Waits
from popserver.cluster.servers import ServerEvents, Servers
from popserver.database.database import Database
from popserver.database.notifications import (
    DUE,
    EVERYTHING,
    GROUP,
    LITE,
    LITE_LOST,
    LITE_SHARED,
    NEW_TOPIC,
    PAUSES,
    PENDING,
    SUBSCRIPTIONS,
    TOPIC,
    USERS,
    Notification,
)
from popserver.engine.clock import Clock
from popserver.engine.reader import Reader
from popserver.engine.timers import BackgroundTasks
from popserver.engine.undelivered import Undelivered
from popserver.engine.wakeups import Wakeups
from popserver.engine.writer import Writer
from popserver.filters.memory import Filters
from popserver.lite.flow import LiteSubscriptions
from popserver.lite.registry import LiteClients
from popserver.maintenance.flow import Maintenance
from popserver.maintenance.patrol import Patrol
from popserver.maintenance.timekeeper import JUMP_MS_MAX, Timekeeper
from popserver.members.flow import GroupMembers, QueueLocks
from popserver.members.notices import GroupNotices
from popserver.model.budget import BrokerLimits, Budgets
from popserver.model.message import WINDOW_MS
from popserver.model.names import Resource
from popserver.model.retry import HOUR_MS
from popserver.producing.checks import Transactions
from popserver.producing.rules import DELAY_MS_MAX, CheckPolicy
from popserver.producing.scheduled import Pending
from popserver.producing.send import Sending
from popserver.pulling.flow import Pulls, SendBacks
from popserver.pulling.offsets import Offsets
from popserver.receiving.filter_prefetch import FilterPrefetch
from popserver.receiving.flow import Polls
from popserver.receiving.redeliveries import Redeliveries
from popserver.settling.flow import HoldRelease, Settling

RETENTION_MS = 72 * HOUR_MS
CHECKS = CheckPolicy()
LIMITS = BrokerLimits()


class Broker:
    """One broker with one store."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        auto_create: bool,
        retention_ms: int = RETENTION_MS,
        clock_jump_ms_max: int = JUMP_MS_MAX,
        key_window_ms: int = WINDOW_MS,
        delay_ms_max: int = DELAY_MS_MAX,
        checks: CheckPolicy = CHECKS,
        long_polling: bool = True,
        shared: bool = False,
        worker: int = 0,
        budgets: Budgets | None = None,
        limits: BrokerLimits = LIMITS,
    ) -> None:
        """`shared`: other servers may use the database; only for Postgres. `worker`: see `Servers`.

        The broker adds its own budgets, with these limits, to the server's `budgets`.
        """
        self.budgets = budgets = Budgets() if budgets is None else budgets
        self.database = database
        self.clock = clock
        self.wakeups = Wakeups(clock)
        backlog = budgets.add("send backlog", limits.send_backlog_bytes, "bytes", "send_backlog")
        undelivered = budgets.add("undelivered", limits.undelivered_bytes, "bytes", "max_undelivered")
        self.undelivered = Undelivered(undelivered, clock)
        self.writer = Writer(database, clock, backlog, self.undelivered.room)
        self.meters = self.writer.meters
        self.writer.effects.on_ready(self.wakeups.wake)
        self.reader = Reader(database, self.writer)
        self.timekeeper = Timekeeper(
            self.reader,
            self.writer,
            clock,
            self._on_clock_change,
            shared=shared,
            jump_ms_max=clock_jump_ms_max,
            retention_ms=retention_ms,
        )
        # An idempotency key is not stored for longer than its message.
        key_window_ms = min(key_window_ms, retention_ms) if retention_ms else key_window_ms
        self.has_idempotency_keys = key_window_ms > 0
        self.maintenance = Maintenance(
            self.reader, self.writer, clock, retention_ms=retention_ms, key_window_ms=key_window_ms
        )
        self.patrol = Patrol(self.reader, self.writer, clock)
        self.catalog = Catalog(self.reader, self.writer, self.maintenance.purge, auto_create=auto_create)
        self.paused = PausedGroups(self.reader, clock)
        self.waits = Waits()
        self.pending = Pending(self.reader, self.writer, self.catalog, clock, self.wakeups, key_window_ms)
        self.transactions = Transactions(self.reader, self.writer, self.catalog, clock, checks)
        self.background = BackgroundTasks(clock)
        self.servers = Servers(database, self.reader, self.writer, clock, shared=shared, worker=worker)
        self.commands = Commands()
        self.hold_release = HoldRelease(self.writer, clock, self.background, self.servers)
        self.group_members = GroupMembers(
            self.reader,
            self.writer,
            self.catalog,
            self.background,
            GroupNotices(self.reader, self.background, clock),
            lambda client_id: self.clients.is_attached(client_id),
        )
        self.clients = Clients(
            clock,
            self.background,
            self.hold_release.abandon_client,
            self.hold_release.extend_client_holds,
            self.hold_release.extend_client_holds if shared else None,
            self.group_members,
            lambda client_id: self.lite.left(client_id),
        )
        self.takeover = Takeover(
            self.reader, self.background, self.maintenance, self.servers, self.clients, self.hold_release
        )
        self.sending = Sending(
            self.writer,
            self.catalog,
            self.transactions,
            self.pending,
            clock,
            key_window_ms=key_window_ms,
            delay_ms_max=delay_ms_max,
        )
        self.redeliveries = Redeliveries(clock.now_ms(), self.meters.delivered)
        subscribed = budgets.add(
            "lite subscriptions", limits.lite_subscriptions, "lite topics", "max_lite_subscriptions"
        )
        self.lite = LiteSubscriptions(
            self.reader,
            self.writer,
            self.catalog,
            clock,
            self.background,
            LiteClients(self.reader, self.wakeups, subscribed),
            self.commands.lose_lite_topic,
        )
        self.writer.effects.on_ready_lite(self.lite.clients.wake, self.lite.clients.topics)
        self.writer.effects.on_invalidated(LITE, self.lite.changed)
        self.writer.effects.on_invalidated(LITE_SHARED, self.lite.shared)
        self.writer.effects.on_invalidated(LITE_LOST, self.lite.lost)
        filter_prefetch = FilterPrefetch(self.reader)
        filters = Filters(budgets.add("filters", limits.filter_bytes, "bytes", "max_filter_memory"))
        self.polls = Polls(
            self.writer,
            self.catalog,
            clock,
            self.wakeups,
            self.hold_release,
            self.redeliveries,
            filter_prefetch,
            filters,
            self.undelivered,
            self.paused,
            self.lite,
            self.waits,
            self.background,
        )
        self.settling = Settling(self.writer, self.catalog)
        self.offsets = Offsets(self.reader, self.writer, self.catalog)
        self.queue_locks = QueueLocks(self.writer, self.catalog)
        self.retries = SendBacks(self.writer, self.catalog)
        self.bulk = Bulk(self.reader, self.writer, self.catalog, clock, self.redeliveries, filter_prefetch, self.paused)
        self.pulls = Pulls(
            self.reader,
            self.catalog,
            self.offsets,
            clock,
            self.wakeups,
            filters,
            self.undelivered,
            self.paused,
            self.meters.delivered,
            self.waits,
            long_polling=long_polling,
        )
        if long_polling:
            self.writer.effects.on_ready(self.pulls.parked.wake, among=self.pulls.parked.topics)
        self.writer.effects.on_invalidated(TOPIC, self._on_changed_topic)
        self.writer.effects.on_invalidated(GROUP, self._on_changed_group)
        self.writer.effects.on_invalidated(NEW_TOPIC, self.pulls.on_new_topic)
        self.writer.effects.on_invalidated(PAUSES, lambda _: self._reload_pauses())
        self.writer.effects.on_invalidated(SUBSCRIPTIONS, lambda _: self.catalog.forget_subscriptions())
        if shared:
            self.writer.announcement = self.servers.announcement
        # Called when another server has changed users or policies, or may have changed them.
        self.users_changed: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"<Broker parked={self.parked} clients={len(self.clients)} waiting={self.writer.waiting}>"

    @property
    def parked(self) -> int:
        """Receives and pulls that wait for messages."""
        return self.wakeups.parked + self.pulls.parked.count + self.paused.waiting

    @property
    def open_polls(self) -> int:
        """Parked receives and pulls, and receives that are reading the store for the first time."""
        return self.polls.open + self.pulls.parked.count

    async def start(self) -> None:
        """Begin with the work in the store: what is due, and push consumers with open holds. The writer must run."""
        await self.paused.reload()
        await self.group_members.start(self.servers.server_id, shared=self.servers.is_shared)
        await self.servers.start(
            ServerEvents(
                on_notification=self._on_notification,
                on_missed=self._refresh_all,
                on_heartbeat=self._check_due,
                on_server_gone=self.takeover.take_over,
                on_client_left_behind=self.takeover.take_over_client,
                on_absence=self.clients.attach_again,
            )
        )
        for client_id in await self.maintenance.start():
            self.clients.expect(client_id)
        await self.pending.start()
        self.lite.start()

    async def settle(self) -> None:
        """Return when everything that is due now is done. With a manual clock nothing changes after that."""
        for _ in range(2):
            await self.servers.idle()
            await self.background.idle()
            await self.maintenance.idle()
            await self.pending.idle()
            await self.lite.idle()
            await self.transactions.idle()
            await self.pulls.parked.idle()
            await self.writer.idle()
            await asyncio.sleep(0)  # what answers begin when they are there, such as the purge after a deletion

    async def drain(self) -> None:
        """End waiting polls without messages. Running requests still complete."""
        self.wakeups.close()
        self.pulls.parked.close()
        self.paused.close()
        await asyncio.sleep(0)

    async def stop(self) -> None:
        self.wakeups.close()
        self.pulls.parked.close()
        self.paused.close()
        self.clients.close()
        await self.pulls.parked.idle()
        await self.background.close()
        await self.maintenance.close()
        await self.patrol.close()
        await self.pending.close()
        await self.lite.close()
        await self.transactions.close()
        await self.servers.close()
        await self.timekeeper.close()
        await self.writer.close()
        await self.reader.close()

    def _on_notification(self, notification: Notification) -> None:
        """Another server, or a user's own transaction, has committed something."""
        self.writer.effects.ready(notification.ready_topics)
        self.writer.effects.ready_lite(notification.ready_lite)
        for what in notification.invalidations:
            self.catalog.invalidate(what)
        self.writer.effects.invalidations(notification.invalidations)
        if EVERYTHING in notification.signals:
            self._refresh_all()
            return
        if notification.signals & {DUE, PENDING}:
            self._check_due()
        if USERS in notification.signals:
            self.users_changed()

    def _on_changed_topic(self, name: Resource) -> None:
        """Here or at another server it was changed or deleted: who waits there has to ask again."""
        self.catalog.forget_topic(name)
        self.waits.change(TOPIC, name)

    def _on_changed_group(self, name: Resource) -> None:
        self.catalog.forget_group(name)
        self.waits.change(GROUP, name)

    def _refresh_all(self) -> None:
        self.catalog.forget_all()
        self._reload_pauses()
        self.group_members.notices.all_changed()
        self.wakeups.wake_all()
        self.pulls.parked.wake_all()
        self.lite.read_all_again()
        self.users_changed()
        self._check_due()

    def _reload_pauses(self) -> None:
        self.background.submit("pauses", self.paused.reload)

    def _check_due(self) -> None:
        self.maintenance.check_due()
        self.pending.check_due()
        self.transactions.check_due()

    def _on_clock_change(self) -> None:
        """The system clock was set, or a jump of it is confirmed."""
        self._check_due()
        self.maintenance.age()
