"""Several servers on one Postgres: who else is there, and what they tell each other.

A server says every second that it is there, tells the others in each commit what that commit made grantable,
and hears the same of them. As long as it is alone it tells nothing: who comes says so, and is then told to look at
everything. Clocks are kept in step with the database's.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import NamedTuple

import structlog

from popserver.cluster import sql
from popserver.cluster.listen import NotificationFeed
from popserver.cluster.sql import (
    BEAT_MS,
    LONE_BEAT_MS,
    SERVER_LAPSE_MS,
    AttachClient,
    DetachClient,
    Heartbeat,
    HeartbeatResult,
    Server,
    clock_ms,
)
from popserver.database import notifications
from popserver.database.database import Database
from popserver.database.notifications import SERVERS, Notification
from popserver.engine.clock import Alarm, Clock
from popserver.engine.reader import Reader
from popserver.engine.transaction import Transaction
from popserver.engine.writer import Writer
from popserver.model.errors import PopError
from popserver.model.retry import CLIENT_LAPSE_MS, SECOND_MS

JUDGES_AFTER_MS = 10 * SECOND_MS
# After this without a beat the others may have taken the clients of this server for gone; a beat less, as their clocks
# are not quite its own.
AWAY_MS = CLIENT_LAPSE_MS - BEAT_MS

log = structlog.get_logger("popserver.members")


class ServerEvents(NamedTuple):
    """What the broker does when it hears of the others."""

    heard: Callable[[Notification], None]
    missed: Callable[[], None]  # notices may have been lost
    looks: Callable[[], None]  # a beat beside others: what they know to fall due may be ours to end
    went: Callable[[], None]  # a server is not there any more: its duties are everybody's
    left_behind: Callable[[str], None]  # a client of a server that has not been seen for long
    was_away: Callable[[], None]  # this server was not seen for so long that its clients may not be listed any more


class Servers:
    """This server among the others; one that does not share its database is alone for ever."""

    def __init__(self, database: Database, reader: Reader, writer: Writer, clock: Clock, *, shared: bool) -> None:
        self.server_id = secrets.token_hex(6)
        self.others: tuple[Server, ...] = ()
        self._database = database
        self._reader = reader
        self._writer = writer
        self._clock = clock
        self._events: ServerEvents
        self._shared = shared
        self._welcomed: set[str] = set()
        self._strange_addresses: set[str] = set()
        self.address = ""
        self._board = NotificationFeed(database, self._hear, self._miss) if shared else None
        # Read by the writer's thread. Until it is known, somebody may be there.
        self._is_alone = not shared
        self._there_since_ms: int | None = None
        self._last_beat_ms = 0
        self._alarm: Alarm | None = None
        self._beating: asyncio.Task[None] | None = None
        self._again = False
        self._has_missed = False  # to be made up for as soon as the database answers
        self._closed = False

    @property
    def is_shared(self) -> bool:
        """Whether other servers may use the database."""
        return self._shared

    async def start(self, events: ServerEvents) -> None:
        """Say that this server is there; from then on it hears of everything."""
        self._events = events
        if self._board is not None:
            await self._board.start()
            await self._beat()

    async def list_at(self, address: str) -> None:
        """Clients of the other servers may come to this address."""
        self.address = address
        if self._shared:
            await self._beat()

    async def idle(self) -> None:
        while self._beating is not None:
            await asyncio.gather(self._beating, return_exceptions=True)

    async def close(self) -> None:
        """Leave, as far as the database still answers."""
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        await self.idle()
        if self._board is None:
            return
        await self._board.close()
        try:
            await self._writer.submit(sql.Leave(self.server_id))
        except PopError as error:
            log.warning("left without a word", reason=error.sentence)

    def reachable(self) -> list[Server]:
        """The servers that clients can be sent to, this one among them wherever it is; by address, each once."""
        by_address = {each.address: each for each in reversed(self.others) if each.address}
        by_address[self.address] = Server(self.server_id, self.address)
        return [by_address[address] for address in sorted(by_address)]

    def is_elsewhere(self, address: str) -> bool:
        """Whether the address is, or was, another server's."""
        return address != self.address and address in self._strange_addresses

    def announcement(self, tx: Transaction) -> str:
        """What the others are to hear when the transaction is committed; empty for nothing. Called by the writer."""
        if self._is_alone and not tx.words:
            return ""
        return notifications.encode(self.server_id, tx.rings, tx.outdated, tx.words)

    async def come(self, client_id: str, *, inherits: bool = False) -> None:
        """A push consumer is here: its holds live as long as it does, whichever server granted them."""
        if self._shared:
            await self._writer.submit(AttachClient(client_id, self.server_id, inherits))

    async def go(self, client_id: str, *, inherits: bool = False, everywhere: bool = False) -> bool:
        """A push consumer is gone here; says whether it is gone everywhere."""
        if not self._shared:
            return True
        return await self._writer.submit(DetachClient(client_id, self.server_id, inherits, everywhere))

    def _hear(self, notice: Notification) -> None:
        if notice.sender == self.server_id:
            return
        # Whoever speaks is there, be its last beat late.
        if SERVERS in notice.words or (notice.sender and notice.sender not in self._ids()):
            self._is_alone = False
            self._begin_beat()
        self._events.heard(notice)

    def _miss(self) -> None:
        assert self._board is not None
        if self._board.is_up:
            self._has_missed = False
            self._events.missed()
        else:
            # Who comes now cannot tell us.
            self._is_alone = False
            # While the database is away there is nothing to look at: polls wait on, and what is known is kept.
            self._has_missed = True
        if self._last_beat_ms:
            self._begin_beat()

    def _begin_beat(self) -> None:
        if self._closed:
            return
        if self._beating is not None:
            self._again = True
            return
        self._beating = asyncio.get_running_loop().create_task(self._beat_on())

    async def _beat_on(self) -> None:
        try:
            self._again = True
            while self._again and not self._closed:
                self._again = False
                await self._beat()
        except PopError as error:
            log.warning("the others do not hear that this server is there", reason=error.sentence)
            self._set_alarm()
        finally:
            self._beating = None

    async def _beat(self) -> None:
        now_ms = self._clock.now_ms()
        if self._there_since_ms is None or now_ms - self._last_beat_ms > SERVER_LAPSE_MS:
            self._there_since_ms = now_ms
        # Who was away, with the database perhaps, cannot say that others were not there.
        judges = now_ms - self._there_since_ms >= JUDGES_AFTER_MS
        beaten = await self._writer.submit(Heartbeat(self.server_id, self.address, judges, self._clock.ahead_ms()))
        was_away = beaten.is_new or self._clock.now_ms() - self._last_beat_ms > AWAY_MS
        self._last_beat_ms = now_ms
        self._clock.start_at_least(beaten.newest_ms)
        if was_away:
            self._events.was_away()
        self._see(beaten)
        await self._reader.read(lambda conn: self._clock.follow(lambda: clock_ms(conn)))
        self._set_alarm()

    def _see(self, beaten: HeartbeatResult) -> None:
        before, now = self._ids(), {each.server_id for each in beaten.others}
        self.others = beaten.others
        self._strange_addresses |= {each.address for each in beaten.others if each.address}
        # The writer is one thread: what it committed untold came before the welcome, which tells it.
        self._is_alone = not now and self._board is not None and self._board.is_up
        if now - self._welcomed:
            self._welcome(now)
        for client_id in beaten.left_behind:
            self._events.left_behind(client_id)
        if before or now:
            self._events.looks()
        if before - now:
            self._events.went()
        if self._has_missed:
            self._has_missed = False
            self._events.missed()

    def _ids(self) -> set[str]:
        return {each.server_id for each in self.others}

    def _welcome(self, now: set[str]) -> None:
        self._welcomed = now

        def done(answer: asyncio.Future[None]) -> None:
            if not answer.cancelled() and answer.exception() is not None:
                self._welcomed = set()  # so the next beat tries again

        self._writer.submit(sql.AdoptClients()).add_done_callback(done)

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        if not self._closed:
            beat_ms = BEAT_MS if self.others else LONE_BEAT_MS
            self._alarm = self._clock.call_at(self._clock.now_ms() + beat_ms, self._begin_beat)
