"""Every part of a running broker: what each is made of, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from popserver.bulk.flow import Bulk
from popserver.catalog.flow import Catalog
from popserver.clients.clients import Clients
from popserver.clients.commands import Commands
from popserver.clients.takeover import Takeover
from popserver.cluster.servers import ServerEvents, Servers
from popserver.database.database import Database
from popserver.database.notifications import DUE, EVERYTHING, NEW_TOPIC, PENDING, USERS, Notification
from popserver.engine.clock import Clock
from popserver.engine.reader import Reader
from popserver.engine.timers import BackgroundTasks
from popserver.engine.undelivered import Undelivered
from popserver.engine.wakeups import Wakeups
from popserver.engine.writer import Writer
from popserver.filters.memory import Filters
from popserver.maintenance.flow import Maintenance
from popserver.maintenance.timekeeper import JUMP_MS_MAX, Timekeeper
from popserver.members.flow import GroupMembers, QueueLocks
from popserver.members.notices import GroupNotices
from popserver.model.budget import BrokerLimits, Budgets
from popserver.model.message import WINDOW_MS
from popserver.model.retry import HOUR_MS
from popserver.producing.checks import Transactions
from popserver.producing.rules import DELAY_MS_MAX, CheckPolicy
from popserver.producing.scheduled import Pending
from popserver.producing.send import Sending
from popserver.pulling.flow import Pulls, Retries
from popserver.pulling.offsets import Offsets
from popserver.receiving.flow import Polls, Redeliveries
from popserver.receiving.judging import Judging
from popserver.settling.flow import HoldRelease, Settling

RETENTION_MS = 72 * HOUR_MS
CHECKS = CheckPolicy()
LIMITS = BrokerLimits()


class Broker:
    """One running broker over one store."""

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
        shared: bool = False,
        budgets: Budgets | None = None,
        limits: BrokerLimits = LIMITS,
    ) -> None:
        """`shared`: other servers may use the database, which then is a Postgres.

        The broker adds its budgets, with these limits, to `budgets`, which are the server's.
        """
        self.budgets = budgets = Budgets() if budgets is None else budgets
        self.database = database
        self.clock = clock
        self.wakeups = Wakeups(clock)
        backlog = budgets.add("send backlog", limits.send_backlog_bytes, "bytes", "send_backlog")
        undelivered = budgets.add("undelivered", limits.undelivered_bytes, "bytes", "max_undelivered")
        self.undelivered = Undelivered(undelivered, clock)
        self.writer = Writer(database, clock, backlog, self.undelivered.room)
        self.writer.effects.on_ready(self.wakeups.ring)
        self.reader = Reader(database, self.writer)
        self.timekeeper = Timekeeper(
            self.reader,
            self.writer,
            clock,
            self._look_at_time,
            shared=shared,
            jump_ms_max=clock_jump_ms_max,
            retention_ms=retention_ms,
        )
        # A key is kept no longer than its message.
        key_window_ms = min(key_window_ms, retention_ms) if retention_ms else key_window_ms
        self.heeds_keys = key_window_ms > 0
        self.maintenance = Maintenance(
            self.reader, self.writer, clock, retention_ms=retention_ms, key_window_ms=key_window_ms
        )
        self.catalog = Catalog(self.reader, self.writer, self.maintenance.purge, auto_create=auto_create)
        self.pending = Pending(self.reader, self.writer, self.catalog, clock, key_window_ms)
        self.transactions = Transactions(self.reader, self.writer, self.catalog, clock, checks)
        self.errands = BackgroundTasks(clock)
        self.members = Servers(database, self.reader, self.writer, clock, shared=shared)
        self.commands = Commands()
        self.orphans = HoldRelease(self.writer, clock, self.errands, self.members)
        self.group_members = GroupMembers(
            self.reader,
            self.writer,
            self.catalog,
            self.errands,
            GroupNotices(self.reader, self.errands, clock),
            lambda client_id: self.clients.is_attached(client_id),
        )
        self.clients = Clients(
            clock,
            self.errands,
            self.orphans.orphan_client,
            self.orphans.adopt,
            self.orphans.adopt if shared else None,
            self.group_members,
        )
        self.neighbours = Takeover(
            self.reader, self.errands, self.maintenance, self.members, self.clients, self.orphans
        )
        self.sending = Sending(
            self.writer, self.catalog, self.transactions, clock, key_window_ms=key_window_ms, delay_ms_max=delay_ms_max
        )
        self.redeliveries = Redeliveries(clock.now_ms())
        judging = Judging(self.reader)
        filters = Filters(budgets.add("filters", limits.filter_bytes, "bytes", "max_filter_memory"))
        self.polls = Polls(
            self.writer,
            self.catalog,
            clock,
            self.wakeups,
            self.orphans,
            self.redeliveries,
            judging,
            filters,
            self.undelivered,
        )
        self.settling = Settling(self.writer, self.catalog)
        self.offsets = Offsets(self.reader, self.writer, self.catalog)
        self.queue_locks = QueueLocks(self.writer, self.catalog)
        self.retries = Retries(self.writer, self.catalog)
        self.bulk = Bulk(self.reader, self.writer, self.catalog, clock, self.redeliveries, judging)
        self.pulls = Pulls(self.reader, self.catalog, self.offsets, clock, self.wakeups, filters, self.undelivered)
        self.writer.effects.on_ready(self.pulls.parked.ring, among=self.pulls.parked.topics)
        self.writer.effects.on_outdated(NEW_TOPIC, self.pulls.topic_was_made)
        if shared:
            self.writer.announcement = self.members.announcement
        # Told when another server has changed users or policies, or may have.
        self.users_changed: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"<Broker parked={self.parked} clients={len(self.clients)} waiting={self.writer.waiting}>"

    @property
    def parked(self) -> int:
        """Receives and pulls that wait for messages."""
        return self.wakeups.parked + self.pulls.parked.count

    @property
    def open_polls(self) -> int:
        """Those, and receives whose first look at the store is not done."""
        return self.polls.open + self.pulls.parked.count

    async def start(self) -> None:
        """Take up what the store holds, once the writer runs: what is due, and whose push holds are open."""
        await self.group_members.start(self.members.server_id, shared=self.members.is_shared)
        await self.members.start(
            ServerEvents(
                heard=self._hear,
                missed=self._look_at_everything,
                looks=self._look,
                went=self.neighbours.take_up,
                left_behind=self.neighbours.inherit,
                was_away=self.clients.attend_again,
            )
        )
        for client_id in await self.maintenance.start():
            self.clients.expect(client_id)
        await self.pending.start()

    async def settle(self) -> None:
        """Return when everything that is due now has been done: with a manual clock, a state that stands still."""
        for _ in range(2):
            await self.members.idle()
            await self.errands.idle()
            await self.maintenance.idle()
            await self.pending.idle()
            await self.transactions.idle()
            await self.pulls.parked.idle()
            await self.writer.idle()

    async def drain(self) -> None:
        """Answer waiting polls empty; requests on their way are still done."""
        self.wakeups.close()
        self.pulls.parked.close()
        await asyncio.sleep(0)

    async def stop(self) -> None:
        self.wakeups.close()
        self.pulls.parked.close()
        self.clients.close()
        await self.pulls.parked.idle()
        await self.errands.close()
        await self.maintenance.close()
        await self.pending.close()
        await self.transactions.close()
        await self.members.close()
        await self.timekeeper.close()
        await self.writer.close()
        self.reader.close()

    def _hear(self, notice: Notification) -> None:
        """Another server, or somebody's own transaction, has committed something."""
        self.writer.effects.ready(notice.rings)
        for what in notice.outdated:
            self.catalog.outdated(what)
        self.writer.effects.outdated(notice.outdated)
        if EVERYTHING in notice.words:
            self._look_at_everything()
            return
        if notice.words & {DUE, PENDING}:
            self._look()
        if USERS in notice.words:
            self.users_changed()

    def _look_at_everything(self) -> None:
        self.catalog.forget_all()
        self.group_members.notices.all_changed()
        self.wakeups.ring_all()
        self.pulls.parked.ring_all()
        self.users_changed()
        self._look()

    def _look(self) -> None:
        self.maintenance.look()
        self.pending.look()
        self.transactions.look()

    def _look_at_time(self) -> None:
        """The system's clock was set, or a jump of it is believed."""
        self._look()
        self.maintenance.age()
