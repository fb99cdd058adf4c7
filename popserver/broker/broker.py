"""Makes all parts of a broker, and starts and stops them in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from popserver.alerts.flow import Alerts
from popserver.broker.consuming import Consuming
from popserver.broker.engine import Engine
from popserver.broker.producing import Producing
from popserver.broker.sessions import Sessions
from popserver.catalog.flow import Catalog
from popserver.catalog.paused import PausedGroups
from popserver.charts.flow import Charts
from popserver.cluster.servers import ServerEvents, Servers
from popserver.database import notifications
from popserver.database.database import Database
from popserver.database.notifications import Notification
from popserver.engine.clock import Clock
from popserver.maintenance.flow import Maintenance
from popserver.maintenance.patrol import Patrol
from popserver.maintenance.timekeeper import JUMP_MS_MAX, Timekeeper
from popserver.model.budget import BrokerLimits
from popserver.model.message import WINDOW_MS
from popserver.model.names import Resource
from popserver.model.retry import HOUR_MS
from popserver.producing.rules import DELAY_MS_MAX, CheckPolicy

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
        chart_series_max: int = 0,
        has_webhook: bool = False,
        limits: BrokerLimits = LIMITS,
    ) -> None:
        """`shared`: other servers may use the database; only for Postgres. `worker`: see `Servers`."""
        self.engine = engine = Engine(database, clock, limits)
        reader, writer = engine.reader, engine.writer
        self.timekeeper = Timekeeper(
            reader,
            writer,
            clock,
            self._on_clock_change,
            shared=shared,
            jump_ms_max=clock_jump_ms_max,
            retention_ms=retention_ms,
        )
        # An idempotency key is not stored for longer than its message.
        key_window_ms = min(key_window_ms, retention_ms) if retention_ms else key_window_ms
        self.maintenance = Maintenance(reader, writer, clock, retention_ms=retention_ms, key_window_ms=key_window_ms)
        self.patrol = Patrol(reader, writer, clock)
        self.catalog = catalog = Catalog(reader, writer, self.maintenance.purge, auto_create=auto_create)
        self.paused = PausedGroups(reader, clock)
        self.servers = Servers(database, reader, writer, clock, engine.wakeups.watched, shared=shared, worker=worker)
        self.charts = Charts(
            reader, writer, clock, engine.meters.delivered, lambda: self.servers.leads, chart_series_max
        )
        self.producing = Producing(engine, catalog, checks, key_window_ms=key_window_ms, delay_ms_max=delay_ms_max)
        self.sessions = Sessions(engine, catalog, self.servers, self.maintenance, limits.lite_subscriptions)
        self.consuming = Consuming(
            engine, catalog, self.sessions, self.paused, limits.filter_bytes, long_polling=long_polling
        )
        self.alerts = Alerts(
            reader,
            clock,
            lambda: list(engine.budgets),
            self.sessions.clients.consumers,
            self.consuming.redeliveries,
            self.paused,
            self.timekeeper.hints,
            self.patrol.sentences,
            database.file,
            retention_ms=retention_ms,
            has_webhook=has_webhook,
        )
        writer.effects.on_invalidated(notifications.TOPIC, self._on_changed_topic)
        writer.effects.on_invalidated(notifications.GROUP, self._on_changed_group)
        writer.effects.on_invalidated(notifications.NEW_TOPIC, self.consuming.pulls.on_new_topic)
        writer.effects.on_invalidated(notifications.PAUSES, lambda _: self._reload_pauses())
        writer.effects.on_invalidated(notifications.SUBSCRIPTIONS, lambda _: catalog.forget_subscriptions())
        if shared:
            writer.announcement = self.servers.announcement
        # Called when another server has changed users or policies, or may have changed them.
        self.users_changed: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        clients, waiting = len(self.sessions.clients), self.engine.writer.waiting
        return f"<Broker parked={self.parked} clients={clients} waiting={waiting}>"

    @property
    def parked(self) -> int:
        """Receives and pulls that wait for messages."""
        return self.engine.wakeups.parked + self.consuming.pulls.parked.count + self.paused.waiting

    async def start(self) -> None:
        """Begin with the work in the store: what is due, and push consumers with open holds. The writer must run."""
        await self.paused.reload()
        await self.sessions.group_members.start(self.servers.server_id, shared=self.servers.is_shared)
        await self.servers.start(
            ServerEvents(
                on_notification=self._on_notification,
                on_missed=self._refresh_all,
                on_heartbeat=self._check_due,
                on_server_gone=self.sessions.takeover.take_over,
                on_client_left_behind=self.sessions.takeover.take_over_client,
                on_absence=self.sessions.clients.attach_again,
            )
        )
        for client_id in await self.maintenance.start():
            self.sessions.clients.expect(client_id)
        await self.producing.pending.start()
        self.sessions.lite.start()
        self.charts.start()

    async def settle(self) -> None:
        """Return when everything that is due now is done. With a manual clock nothing changes after that."""
        for _ in range(2):
            await self.servers.idle()
            await self.engine.background.idle()
            await self.maintenance.idle()
            await self.charts.idle()
            await self.producing.pending.idle()
            await self.sessions.lite.idle()
            await self.producing.transactions.idle()
            await self.consuming.pulls.parked.idle()
            await self.engine.writer.idle()
            await asyncio.sleep(0)  # lets callbacks of answers begin their work, such as the purge after a deletion

    async def drain(self) -> None:
        """End waiting polls without messages. Running requests still complete."""
        self.engine.wakeups.close()
        self.consuming.pulls.parked.close()
        self.paused.close()
        await asyncio.sleep(0)

    async def stop(self) -> None:
        self.engine.wakeups.close()
        self.consuming.pulls.parked.close()
        self.paused.close()
        self.sessions.clients.close()
        await self.consuming.pulls.parked.idle()
        await self.engine.background.close()
        await self.charts.close()
        await self.maintenance.close()
        await self.patrol.close()
        await self.producing.pending.close()
        await self.sessions.lite.close()
        await self.producing.transactions.close()
        await self.servers.close()
        await self.timekeeper.close()
        await self.engine.writer.close()
        await self.engine.reader.close()

    def _on_notification(self, notification: Notification) -> None:
        """Another server, or a user's own transaction, has committed something."""
        self.engine.writer.effects.ready(dict.fromkeys(notification.ready_topics))
        self.engine.writer.effects.ready(notification.ready_lite)
        for what in notification.invalidations:
            self.catalog.invalidate(what)
        self.engine.writer.effects.invalidations(notification.invalidations)
        if notifications.EVERYTHING in notification.signals:
            self._refresh_all()
            return
        if notification.signals & {notifications.DUE, notifications.PENDING}:
            self._check_due()
        if notifications.USERS in notification.signals:
            self.users_changed()

    def _on_changed_topic(self, name: Resource) -> None:
        """The topic was changed or deleted, here or at another server: end the waits in it."""
        self.catalog.forget_topic(name)
        self.sessions.waits.change(notifications.TOPIC, name)

    def _on_changed_group(self, name: Resource) -> None:
        self.catalog.forget_group(name)
        self.sessions.waits.change(notifications.GROUP, name)

    def _refresh_all(self) -> None:
        self.catalog.forget_all()
        self._reload_pauses()
        self.sessions.group_members.notices.all_changed()
        self.engine.wakeups.wake_all()
        self.consuming.pulls.parked.wake_all()
        self.sessions.lite.read_all_again()
        self.users_changed()
        self._check_due()

    def _reload_pauses(self) -> None:
        self.engine.background.submit("pauses", self.paused.reload)

    def _check_due(self) -> None:
        self.maintenance.check_due()
        self.producing.pending.check_due()
        self.producing.transactions.check_due()

    def _on_clock_change(self) -> None:
        """The system clock was set, or a jump of it is confirmed."""
        self._check_due()
        self.maintenance.age()
