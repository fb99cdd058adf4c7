"""Who answers at a host: one that is silent does not delay the others, and one that was replaced is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from popserver.cluster import failover
from popserver.cluster.failover import FailoverWatch
from popserver.database.database import Database
from popserver.engine.writer import Writer
from popserver.model.errors import StoreUnavailable
from popserver.postgres import connections
from popserver.postgres.connections import PostgresIdentity
from popserver.postgres.urls import Host
from tests.support.accepting import AcceptingPort, connection_to, until_one_ends
from tests.support.postgres import PostgresServer
from tests.support.waiting import eventually

# A new connection is one packet, so the line below knows where it ends.
PLAIN = "sslmode=disable&gssencmode=disable"


async def test_a_primary_that_accepts_connections_and_is_silent_delays_nothing(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _silent_after_the_start(own_postgres._port) as (port, _):
        hosts = f"127.0.0.1:{port},127.0.0.1:{own_postgres._port}"
        database = Database(f"postgresql://postgres@{hosts}/postgres?{PLAIN}")
        # The silent one is asked without an end, so only who does not wait for it gets an answer.
        monkeypatch.setattr(connections, "ANSWER_S", 600.0)
        found = await asyncio.wait_for(database.connections.newer_primary(), 60)
        assert found == database.connections.hosts[1]


async def test_a_host_that_is_silent_for_long_does_not_delay_the_next_question(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _silent_after_the_start(own_postgres._port) as (port, lines):
        database = Database(f"postgresql://postgres@127.0.0.1:{port}/postgres?{PLAIN}")
        monkeypatch.setattr(connections, "ANSWER_S", 600.0)
        for name in ("CHECK_S", "SILENT_S", "ASK_AGAIN_S"):
            monkeypatch.setattr(failover, name, 0.001)
        watch = FailoverWatch(database, cast("Writer", Waiting()))
        watch.start()
        try:

            async def are_three() -> bool:
                return len(lines) >= 3

            await eventually(are_three, "questions while the first has no answer", within_s=60)
        finally:
            await watch.close()


class Waiting:
    """A writer whose transaction began long ago."""

    batch_began_s = 0.0


async def test_a_silent_host_is_cut_and_not_asked_to_cancel(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _silent_after_the_start(own_postgres._port) as (port, lines):
        database = Database(f"postgresql://postgres@127.0.0.1:{port}/postgres?{PLAIN}")
        monkeypatch.setattr(connections, "ANSWER_S", 2.0)
        [(host, reason)] = await database.connections.check_hosts()
        assert host.port == str(port)
        assert reason
        assert len(lines) == 1, "a second connection would ask to cancel"


def test_a_database_that_was_replaced_behind_one_name() -> None:
    known = Database("postgresql://postgres@db/postgres").connections
    known._check_system(PostgresIdentity("1", 1), Host("db", ""))
    with pytest.raises(StoreUnavailable, match=r"was replaced, for example by pg_upgrade: .* restart the server"):
        known._check_system(PostgresIdentity("2", 1), Host("db", ""))


@asynccontextmanager
async def _silent_after_the_start(port: int) -> AsyncIterator[tuple[int, list[asyncio.StreamWriter]]]:
    """Lines to Postgres that carry the first packet, all answers, and then nothing more of what is asked.

    The port, and all lines that were ever opened.
    """
    lines: list[asyncio.StreamWriter] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append(writer)
        async with connection_to("127.0.0.1", port) as (far_reader, far_writer):
            far_writer.write(await reader.read(65_536))
            await until_one_ends(_ignored(reader), _copied(far_reader, writer))

    async with AcceptingPort(forward) as accepting:
        yield accepting.port, lines


async def _ignored(reader: asyncio.StreamReader) -> None:
    while await reader.read(65_536):
        pass


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
