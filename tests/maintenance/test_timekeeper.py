"""A server whose system clock is set, while it runs and while it does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from unittest.mock import AsyncMock

import pytest
import structlog
from sqlalchemy import text

from popserver.cluster import servers
from popserver.database import migrate
from popserver.database.database import Database
from popserver.engine.clock import SLOWER_AFTER_A_STEP, SystemClock
from popserver.filters.tags import parse
from popserver.maintenance import clock_reset, timekeeper
from popserver.maintenance.clock_notes import DOUBT_MS
from popserver.maintenance.timekeeper import JUMP_MS_MAX
from popserver.model.errors import AlreadyExists, StoreUnavailable
from popserver.model.message import PROPERTY, SendResult
from popserver.model.retry import Holder
from popserver.model.topic import MessageType
from tests.support.builders import GROUP, TOPIC, a_new_topic, messages_of
from tests.support.machine import Machine
from tests.support.running_broker import TestedBroker

HOUR = 3_600_000
MINUTE = 60_000


class Server:
    """A broker on a machine's clock, with its beats in the test's hands."""

    def __init__(self, broker: TestedBroker, machine: Machine, clock: SystemClock) -> None:
        self.broker = broker
        self.machine = machine
        self.clock = clock

    async def live(self, ms: int, beat_ms: int = 10 * MINUTE) -> None:
        """Time passes; at each beat the server looks at the system's clock."""
        while ms > 0:
            self.machine.run(min(beat_ms, ms) / 1_000)
            await self.broker.timekeeper.check()
            ms -= beat_ms

    async def send(self, count: int = 1, **more: Any) -> None:
        outcomes = await self.broker.send(messages_of(count, **more))
        assert all(isinstance(each, SendResult) for each in outcomes), outcomes

    async def retain(self) -> int:
        """Remove what is old; how many messages are left."""
        while True:
            now_ms = self.clock.now_ms()
            if (await self.broker.maintenance._retain() or 0) > now_ms:
                return await self.count("message")

    async def count(self, table: str) -> int:
        statement = text(f"SELECT COUNT(*) FROM {table}")
        return int(await self.broker.engine.reader.read(lambda conn: conn.execute(statement).scalar_one()))

    async def column(self, statement: str) -> list[Any]:
        return await self.broker.engine.reader.read(lambda conn: list(conn.execute(text(statement)).scalars()))

    async def receive(self, invisible_ms: int) -> None:
        """One message, held."""
        (_,) = await self.broker.receive(
            GROUP,
            TOPIC,
            wanted=parse("*"),
            batch_size=1,
            invisible_ms=invisible_ms,
            holder=Holder.SIMPLE,
            client_id="c1",
            poll_until_ms=0,
        )

    def hints(self) -> str:
        return "\n".join(self.broker.timekeeper.hints())


@asynccontextmanager
async def a_server(url: str, machine: Machine, **more: Any) -> AsyncIterator[Server]:
    """Started as `popmq serve` does it."""
    database = Database(url, durability="relaxed")
    migrate.upgrade(database)
    clock = machine.clock()
    broker = TestedBroker(database, clock, auto_create=True, shared=not database.is_sqlite, **more)
    broker.engine.writer.start()
    await broker.timekeeper.start()
    await broker.start()
    await broker.servers.list_at("127.0.0.1:1")
    with suppress(AlreadyExists):
        await broker.catalog.create_topic(a_new_topic(accepts=(MessageType.NORMAL, MessageType.DELAY)))
    try:
        yield Server(broker, machine, clock)
    finally:
        await broker.stop()
        database.close()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Of a Postgres it is the machine that the database runs on, too: its clock cannot be set."""
    machine = Machine()
    for module in (servers, timekeeper):
        monkeypatch.setattr(module, "clock_ms", lambda _conn: machine.wall_ms)
    return machine


@pytest.fixture
def logged() -> Any:
    with structlog.testing.capture_logs() as lines:
        yield lines


class TestAJumpBetweenTwoRuns:
    async def test_removes_nothing_until_it_is_confirmed(
        self, database_url: str, machine: Machine, logged: Any
    ) -> None:
        async with a_server(database_url, machine) as server:
            await server.send(20)
        machine.run(60)
        machine.set_clock(100 * HOUR)
        async with a_server(database_url, machine) as server:
            assert await server.retain() == 20
            assert "100 h 1 min ahead of its last reading" in server.hints().replace("4 days 4 h", "100 h 1 min")
            assert "popmq clock confirm" in server.hints()
            assert [line for line in logged if "popmq clock confirm" in line["event"]], "the log says so as well"
            assert "confirmed" in await server.broker.timekeeper.confirm()
            assert server.hints() == ""
            assert await server.retain() == 0
        removed = [line for line in logged if line["event"] == "old messages removed"]
        assert [(line["topic"], line["count"]) for line in removed] == [("orders", 20)]
        assert removed[0]["oldest"].startswith("2025-01-01 00:00:00")

    async def test_stays_doubted_when_the_confirmation_cannot_be_written_down(
        self, database_url: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with a_server(database_url, machine) as server:
            await server.send(20)
        machine.set_clock(100 * HOUR)
        async with a_server(database_url, machine) as server:
            with monkeypatch.context() as broken:
                broken.setattr(server.broker.engine.writer, "submit", AsyncMock(side_effect=StoreUnavailable()))
                with pytest.raises(StoreUnavailable):
                    await server.broker.timekeeper.confirm()
            assert "popmq clock confirm" in server.hints()
            assert await server.retain() == 20

    async def test_that_is_taken_back_has_removed_nothing(self, database_url: str, machine: Machine) -> None:
        async with a_server(database_url, machine) as server:
            await server.send(20)
        machine.set_clock(100 * HOUR)
        async with a_server(database_url, machine) as server:
            await server.live(10 * MINUTE)
        machine.set_clock(-100 * HOUR)
        async with a_server(database_url, machine) as server:
            assert "runs slower until they meet" in server.hints()
            assert "confirm" not in server.hints()
            await server.live(3 * HOUR)
            assert await server.retain() == 20
            machine.run(73 * 3_600)
            assert await server.retain() == 0, "what is old by the right clock goes, though the server's time is ahead"

    async def test_is_believed_after_an_hour_of_running(self, database_url: str, machine: Machine) -> None:
        """An honest stop of 100 h needs no operator."""
        async with a_server(database_url, machine) as server:
            await server.send(20)
        machine.run(100 * 3_600)
        async with a_server(database_url, machine) as server:
            await server.live(DOUBT_MS // 2)
            assert await server.retain() == 20
        async with a_server(database_url, machine) as server:
            await server.live(DOUBT_MS // 2 - MINUTE)
            assert await server.retain() == 20, "the hour goes on after a restart"
            await server.live(2 * MINUTE)
            assert server.hints() == ""
            assert await server.retain() == 0

    async def test_within_the_limit_is_believed(self, database_url: str, machine: Machine) -> None:
        async with a_server(database_url, machine) as server:
            await server.send(20)
            machine.run(71.5 * 3_600)
            await server.live(MINUTE)
        machine.run(JUMP_MS_MAX / 1_000 - 1)
        async with a_server(database_url, machine) as server:
            assert server.hints() == ""
            assert await server.retain() == 0

    async def test_keeps_idempotency_keys(self, database_url: str, machine: Machine) -> None:
        async with a_server(database_url, machine) as server:
            await server.send(properties={PROPERTY: "k"})
        machine.set_clock(100 * HOUR)
        async with a_server(database_url, machine) as server:
            assert await server.broker.maintenance._expire_keys()
            assert await server.count("idempotency") == 1
            await server.send(properties={PROPERTY: "k"})
            assert await server.count("message") == 1, "the repetition is known"

    async def test_of_a_database_that_no_clock_was_written_to(self, database_url: str, machine: Machine) -> None:
        async with a_server(database_url, machine) as server:
            await server.send(20)
        database = Database(database_url)
        with database.writing.connect() as conn:
            conn.exec_driver_sql("DELETE FROM clock")
        database.close()
        machine.set_clock(100 * HOUR)
        async with a_server(database_url, machine) as server:
            assert await server.retain() == 20
            assert "popmq clock confirm" in server.hints()

    async def test_may_be_as_long_as_the_operator_says(self, database_url: str, machine: Machine) -> None:
        async with a_server(database_url, machine) as server:
            await server.send(20)
        machine.run(100 * 3_600)
        async with a_server(database_url, machine, clock_jump_ms_max=0) as server:
            assert server.hints() == ""
            assert await server.retain() == 0


class TestAJumpWhileItRuns:
    async def test_is_said_and_removes_nothing(self, database_url: str, machine: Machine, logged: Any) -> None:
        async with a_server(database_url, machine) as server:
            await server.send(20)
            machine.set_clock(100 * HOUR)
            await follow(server)
            (line,) = [line for line in logged if line["event"] == "the system clock was set"]
            assert line["by"] == "+4 days 4 h"
            assert "behind the system clock" in server.hints()
            assert await server.retain() == 20
        async with a_server(database_url, machine) as server:
            assert await server.retain() == 20, "nor does the next start"

    async def test_back_is_made_good_slowly(self, database_url: str, machine: Machine, logged: Any) -> None:
        async with a_server(database_url, machine) as server:
            await server.send(1)
            machine.set_clock(-2 * HOUR)
            await follow(server)
            assert "server time is 2 h ahead of the system clock" in server.hints()
            (line,) = [line for line in logged if line["event"] == "the system clock was set"]
            assert line["by"] == "-2 h"
            machine.run(2 * 3_600 / SLOWER_AFTER_A_STEP + 60)
            await follow(server)
            assert server.hints() == ""

    async def test_a_delayed_message_comes_at_its_time_of_day(self, database_url: str, machine: Machine) -> None:
        """After a restart with the right clock the server is 2 h ahead: a delay of 12 s is 12 s nevertheless."""
        machine.set_clock(2 * HOUR)
        async with a_server(database_url, machine) as server:
            await server.send(1)
        machine.set_clock(-2 * HOUR)
        async with a_server(database_url, machine) as server:
            deliver_at_ms = int(machine.wall_ms) + 12_000
            await server.send(message_type=MessageType.DELAY, deliver_at_ms=deliver_at_ms)
            machine.run(11.9)
            server.broker.producing.pending.check_due()
            await server.broker.settle()
            assert await server.count("pending") == 1
            machine.run(0.2)
            server.broker.producing.pending.check_due()
            async with until_gone(server):
                assert await server.count("message") == 2

    async def test_a_delayed_message_waits_for_a_clock_that_was_set_ahead(
        self, database_url: str, machine: Machine
    ) -> None:
        async with a_server(database_url, machine) as server:
            await server.send(message_type=MessageType.DELAY, deliver_at_ms=int(machine.wall_ms) + 90 * MINUTE)
            machine.set_clock(2 * HOUR)
            await follow(server)
            await server.broker.settle()
            assert await server.count("pending") == 1, "the jump is doubted"
            await server.broker.timekeeper.confirm()
            async with until_gone(server):
                assert await server.count("message") == 1


@pytest.mark.parametrize("first_ahead", [2 * HOUR, -2 * HOUR])
async def test_servers_of_one_database_have_one_time(postgres_url: str, machine: Machine, first_ahead: int) -> None:
    async with a_server(postgres_url, machine) as one:
        machine.set_clock(-first_ahead)
        await follow(one)
        await one.broker.servers._heartbeat()
        async with a_server(postgres_url, machine) as other:
            assert abs(other.clock.now_ms() - one.clock.now_ms()) <= 500
            await one.send(1)
            machine.run(60)
            for server in (one, other):
                await follow(server)
            assert abs(other.clock.now_ms() - one.clock.now_ms()) <= 500
            assert await other.retain() == 1


async def test_what_one_server_was_told_the_others_know(postgres_url: str, machine: Machine) -> None:
    async with a_server(postgres_url, machine) as one:
        await one.send(1)
    machine.set_clock(100 * HOUR)
    async with a_server(postgres_url, machine) as one, a_server(postgres_url, machine) as other:
        assert "clock confirm" in other.hints()
        await one.broker.timekeeper.confirm()
        await other.live(10_000)
        assert other.hints() == ""
        async with asyncio.timeout(10):
            while await other.retain():  # noqa: ASYNC110 - the other server may be at work on it just now
                await asyncio.sleep(0.01)


class TestSettingItRightAtOnce:
    async def test_keeps_what_is_left_of_every_hold_and_the_order_of_times(
        self, database_url: str, machine: Machine
    ) -> None:
        machine.set_clock(2 * HOUR)
        async with a_server(database_url, machine) as server:
            await server.send(2_500)
            await server.receive(30_000)
            before = await server.column("SELECT message_key FROM message ORDER BY message_key")
        machine.set_clock(-2 * HOUR)
        assert await reset_when_free(database_url, machine) == 2_500
        async with a_server(database_url, machine) as server:
            assert server.clock.ahead_ms() == 0
            assert server.hints() == ""
            (ends_ms,) = await server.column("SELECT visible_at_ms FROM delivery")
            assert ends_ms == machine.wall_ms + 30_000
            machine.run(1)
            await server.send(1)
            assert (await server.column("SELECT message_key FROM message ORDER BY message_key"))[:-1] == before
            times = await server.column("SELECT stored_at_ms FROM message ORDER BY message_key")
            assert times == [machine.wall_ms - 1_000] * 2_500 + [machine.wall_ms]

    async def test_has_nothing_to_do_where_all_is_well(self, database_url: str, machine: Machine) -> None:
        async with a_server(database_url, machine) as server:
            await server.send(1)
        machine.run(60)
        assert await reset_when_free(database_url, machine) == 0

    async def test_is_refused_while_a_server_runs(self, postgres_url: str, machine: Machine) -> None:
        machine.set_clock(2 * HOUR)
        async with a_server(postgres_url, machine) as server:
            await server.send(1)
            machine.set_clock(-2 * HOUR)
            with pytest.raises(StoreUnavailable, match=r"is in use: popmq has .* stop every server"):
                reset(postgres_url, machine)
            assert await server.column("SELECT stored_at_ms FROM message") == [machine.wall_ms + 2 * HOUR]


def reset(url: str, machine: Machine) -> int:
    """As `popmq db clock --reset` does it; how many messages got another time."""
    database = Database(url)
    try:
        with database.connect_writer() as conn:
            found = clock_reset.clock_state(conn, int(machine.wall_ms))
            return clock_reset.reset(database, conn, found) if found.ahead_ms else 0
    finally:
        database.close()


async def reset_when_free(url: str, machine: Machine) -> int:
    """Once Postgres has noticed that the connections of a server that stopped are closed."""
    for _ in range(100):
        try:
            return reset(url, machine)
        except StoreUnavailable:
            await asyncio.sleep(0.1)
    return reset(url, machine)


async def follow(server: Server) -> None:
    """A beat: on Postgres it is the other servers' as well."""
    if server.broker.servers.is_shared:
        await server.broker.servers._heartbeat()
    await server.broker.timekeeper.check()


@asynccontextmanager
async def until_gone(server: Server) -> AsyncIterator[None]:
    """Nothing is pending any more."""
    left = 1
    while left:
        await server.broker.settle()
        left = await server.count("pending")
    yield
