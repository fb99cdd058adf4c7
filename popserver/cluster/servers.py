"""This server among several servers on one Postgres: heartbeats, and notifications to each other.

Each server writes a heartbeat every second. With each commit it notifies the others which topics have messages to
deliver. A server that is alone sends no notifications. A new server announces itself, and then all servers check
everything once. The servers' clocks follow the database's clock.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import structlog

from popserver.cluster import sql
from popserver.cluster.failover import FailoverWatch
from popserver.cluster.listen import NotificationFeed
from popserver.cluster.sql import (
    HEARTBEAT_MS,
    LONE_HEARTBEAT_MS,
    SERVER_LAPSE_MS,
    AttachClient,
    DetachClient,
    Heartbeat,
    HeartbeatResult,
    Server,
    clock_ms,
)
from popserver.cluster.wants import Wants
from popserver.database.database import Database
from popserver.database.notifications import SERVERS, Notification
from popserver.engine.clock import Alarm, Clock
from popserver.engine.reader import Reader
from popserver.engine.transaction import Transaction
from popserver.engine.wakeups import WatchedTopics
from popserver.engine.writer import Writer
from popserver.model.errors import PopError
from popserver.model.retry import CLIENT_LAPSE_MS, SECOND_MS
from popserver.model.times import span

JUDGE_OTHERS_AFTER_MS = 10 * SECOND_MS
# After this time without a heartbeat other servers may have released the clients of this server. It is one heartbeat
# less than their limit, because their clocks differ a little.
ABSENT_MS = CLIENT_LAPSE_MS - HEARTBEAT_MS
LEAVE_S = 1.0  # a database that does not answer delays the end of a server no longer than this

log = structlog.get_logger("popserver.members")


class ServerEvents(NamedTuple):
    """Callbacks for events in the cluster."""

    on_notification: Callable[[Notification], None]
    on_missed: Callable[[], None]  # notifications may have been lost
    on_heartbeat: Callable[[], None]  # while others run: check for due work that they have stored
    on_server_gone: Callable[[], None]  # the remaining servers take over its work
    on_client_left_behind: Callable[[str], None]  # a client of a server that stopped long ago
    on_absence: Callable[[], None]  # this server had no heartbeat for so long that its clients may have been removed


class Servers:
    """This server and the other servers of its database. Without a shared database it is always alone."""

    def __init__(
        self,
        database: Database,
        reader: Reader,
        writer: Writer,
        clock: Clock,
        watched: WatchedTopics,
        *,
        shared: bool,
        worker: int = 0,
    ) -> None:
        """`worker`: its number among the processes with one address; 0: no other process has its address."""
        self.server_id = secrets.token_hex(6) + (f"-{worker}" if worker else "")
        self.others: tuple[Server, ...] = ()
        self._database = database
        self._reader = reader
        self._writer = writer
        self._clock = clock
        self._events: ServerEvents
        self._shared = shared
        self._adopted: set[str] = set()
        self._other_addresses: set[str] = set()
        self.address = ""
        self._failed_ms: int | None = None  # since when no heartbeat has succeeded
        self._feed = NotificationFeed(database, self._on_notification, self._on_missed) if shared else None
        self._failover = FailoverWatch(database, writer) if shared else None
        self._wants = Wants(watched, writer, clock) if shared else None
        # The writer's thread reads it. Until the first heartbeat there may be other servers.
        self._is_alone = not shared
        self._present_since_ms: int | None = None
        self._last_heartbeat_ms = 0
        self._alarm: Alarm | None = None
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._again = False
        self._has_missed = False  # report lost notifications as soon as the database answers
        self._closed = False
        self._leaves = False

    @property
    def is_shared(self) -> bool:
        """Whether other servers may use the database."""
        return self._shared

    @property
    def leads(self) -> bool:
        """Whether this server does what one server does for all: of those that run, the one with the smallest id.

        While servers come and go, two may lead, or none, for a few seconds.
        """
        return all(self.server_id < each.server_id for each in self.others)

    async def start(self, events: ServerEvents) -> None:
        """Announce this server. From then on it gets all notifications."""
        self._events = events
        if self._failover is not None:
            self._failover.start()
        if self._feed is not None:
            await self._feed.start()
            await self._heartbeat()

    async def list_at(self, address: str) -> None:
        """Publish this server's address for clients of the other servers."""
        self.address = address
        if self._shared:
            await self._heartbeat()

    async def leave(self) -> None:
        """From now on routes name only the other servers: this one stops soon. Until `close` it runs as before."""
        if not self._shared or self._leaves:
            return
        self._leaves = True
        with suppress(PopError, TimeoutError):  # then routes name it until a later heartbeat
            async with asyncio.timeout(LEAVE_S):
                await self._writer.submit(self._own_heartbeat(judges=False))

    @property
    def can_hand_over(self) -> bool:
        """Whether clients can go to another server, which does not leave. Workers of one address are one server."""
        return any(not each.leaves and each.address != (self.address or None) for each in self.others)

    async def idle(self) -> None:
        while self._heartbeat_task is not None:
            await asyncio.wait([self._heartbeat_task])

    async def close(self) -> None:
        """Announce that this server stops, if the database still answers."""
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        await self.idle()
        if self._feed is None:
            return
        await self._feed.close()
        try:
            await self._writer.submit(sql.Leave(self.server_id))
        except PopError as error:
            log.warning("the other servers were not notified that this server stops", reason=error.sentence)
        if self._failover is not None:
            await self._failover.close()

    def reachable(self) -> list[Server]:
        """The servers for routes, including this one unless it leaves; sorted by address, each address once."""
        by_address = {each.address: each for each in reversed(self.others) if each.address and not each.leaves}
        if not self._leaves or not by_address:
            by_address[self.address] = Server(self.server_id, self.address)
        return [by_address[address] for address in sorted(by_address)]

    def is_elsewhere(self, address: str) -> bool:
        """Whether the address belongs, or belonged, to another server."""
        return address != self.address and address in self._other_addresses

    def announcement(self, tx: Transaction) -> str:
        """The notification to other servers for this transaction; empty for none. The writer's thread calls it."""
        if self._is_alone and not tx.signals:
            return ""
        assert self._wants is not None
        return self._wants.notification(self.server_id, tx)

    async def attach(self, client_id: str, *, inherits: bool = False) -> None:
        """Record that a push consumer has connected to this server. Its holds from all servers last as long."""
        if self._shared:
            await self._writer.submit(AttachClient(client_id, self.server_id, inherits))

    async def detach(self, client_id: str, *, inherits: bool = False, everywhere: bool = False) -> bool:
        """Record that a push consumer has left this server. Returns whether it is connected to no server now."""
        if not self._shared:
            return True
        return await self._writer.submit(DetachClient(client_id, self.server_id, inherits, everywhere))

    def _on_notification(self, notification: Notification) -> None:
        if notification.sender == self.server_id:
            return
        assert self._wants is not None
        # A server that sends notifications is running, even if its heartbeat is late.
        if SERVERS in notification.signals or (notification.sender and notification.sender not in self._ids()):
            self._is_alone = False
            self._wants.unsure()
            self._begin_heartbeat()
        self._wants.heard(notification)
        self._events.on_notification(notification)

    def _on_missed(self) -> None:
        assert self._feed is not None
        assert self._wants is not None
        self._wants.missed()
        if self._feed.is_up:
            self._has_missed = False
            self._events.on_missed()
        else:
            # A new server could not announce itself to this one now.
            self._is_alone = False
            # Without the database there is nothing to check: polls keep waiting, and caches are kept.
            self._has_missed = True
        if self._last_heartbeat_ms:
            self._begin_heartbeat()

    def _begin_heartbeat(self) -> None:
        if self._closed:
            return
        if self._heartbeat_task is not None:
            self._again = True
            return
        self._heartbeat_task = asyncio.get_running_loop().create_task(self._heartbeat_until_done())

    async def _heartbeat_until_done(self) -> None:
        try:
            self._again = True
            while self._again and not self._closed:
                self._again = False
                await self._heartbeat()
                if self._failed_ms is not None:
                    away = span(self._clock.now_ms() - self._failed_ms)
                    log.warning("heartbeats to the other servers succeed again", after=away)
                    self._failed_ms = None
        except PopError as error:
            if self._failed_ms is None:  # the next ones would say the same
                log.warning("a heartbeat to the other servers failed", reason=error.sentence)
                self._failed_ms = self._clock.now_ms()
            self._set_alarm()
        finally:
            self._heartbeat_task = None

    async def _heartbeat(self) -> None:
        now_ms = self._clock.now_ms()
        if self._present_since_ms is None or now_ms - self._last_heartbeat_ms > SERVER_LAPSE_MS:
            self._present_since_ms = now_ms
        # A server that had no heartbeats itself, perhaps like all others, cannot decide which others are gone.
        judges = now_ms - self._present_since_ms >= JUDGE_OTHERS_AFTER_MS
        result = await self._writer.submit(self._own_heartbeat(judges=judges))
        was_away = result.is_new or self._clock.now_ms() - self._last_heartbeat_ms > ABSENT_MS
        self._last_heartbeat_ms = now_ms
        self._clock.start_at_least(result.newest_ms)
        if was_away:
            self._events.on_absence()
        self._update(result)
        await self._reader.read(lambda conn: self._clock.follow(lambda: clock_ms(conn)))
        self._set_alarm()

    def _own_heartbeat(self, *, judges: bool) -> Heartbeat:
        return Heartbeat(self.server_id, self.address, judges, self._clock.ahead_ms(), self._leaves)

    def _update(self, result: HeartbeatResult) -> None:
        before, now = self._ids(), {each.server_id for each in result.others}
        self.others = result.others
        self._other_addresses |= {each.address for each in result.others if each.address}
        # The writer is one thread, so commits without notifications come before `AdoptClients`, which makes all check.
        self._is_alone = not now and self._feed is not None and self._feed.is_up
        if self._wants is not None:
            self._wants.agree_on(now, is_alone=self._is_alone)
        # One that comes back may have missed notifications, for the others did not count it any more.
        self._adopted &= now
        if now - self._adopted:
            self._adopt_clients(now)
        for client_id in result.left_behind:
            self._events.on_client_left_behind(client_id)
        if before or now:
            self._events.on_heartbeat()
        if before - now:
            self._events.on_server_gone()
        if self._has_missed:
            self._has_missed = False
            self._events.on_missed()

    def _ids(self) -> set[str]:
        return {each.server_id for each in self.others}

    def _adopt_clients(self, now: set[str]) -> None:
        self._adopted = now

        def done(answer: asyncio.Future[None]) -> None:
            if not answer.cancelled() and answer.exception() is not None:
                self._adopted = set()  # so the next heartbeat tries again

        self._writer.submit(sql.AdoptClients()).add_done_callback(done)

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        if not self._closed:
            interval_ms = HEARTBEAT_MS if self.others else LONE_HEARTBEAT_MS
            self._alarm = self._clock.call_at(self._clock.now_ms() + interval_ms, self._begin_heartbeat)
