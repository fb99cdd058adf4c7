"""Two hosts that both accept writes after a failover that the first one has not noticed: the second one is right."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg

from popproto.v2 import definition_pb2 as pb
from tests.support.postgres import PostgresServer, children
from tests.support.raw_client import assert_says, raw_client
from tests.support.server_process import served
from tests.support.standby import standby_of
from tests.support.waiting import eventually


async def test_a_frozen_primary_is_left_for_good(own_postgres: PostgresServer) -> None:
    """Nothing makes it a standby here, so when it thaws it accepts writes as before."""
    with standby_of(own_postgres) as standby:
        url = f"postgresql://postgres@127.0.0.1:{own_postgres._port},127.0.0.1:{standby._port}/postgres"
        async with served(url) as server, raw_client(server.endpoint) as client:
            assert (await client.send("first")).code == pb.OK
            await eventually(lambda: _caught_up(own_postgres, standby), "a standby that has it", within_s=60)

            async def is_back() -> bool:
                return (await client.send("second")).code == pb.OK

            with _frozen(own_postgres):
                _execute(standby, "SELECT pg_promote()")
                await eventually(is_back, "a send that is OK", within_s=60)
            assert (await client.send("third")).code == pb.OK
            standby.kill()

            async def is_refused() -> bool:
                return "former primary" in (await client.send("fourth")).message

            await eventually(is_refused, "the refusal of the former primary", within_s=60)
            assert_says(await client.send("fourth"), "former primary", "check that it runs")
            standby.restart()
            await eventually(is_back, "a send that is OK", within_s=60)
            assert set(await client.drain(3)) == {"first", "second", "third"}
        # Both accept writes, and the former primary is the first in the URL.
        async with served(url) as server, raw_client(server.endpoint) as client:
            assert (await client.send("fifth")).code == pb.OK
            assert set(await client.drain(1)) == {"fifth"}
        assert _stored(own_postgres) == 1, "the former primary got nothing"


async def _caught_up(primary: PostgresServer, standby: PostgresServer) -> bool:
    return _stored(primary) == _stored(standby) == 1


def _stored(postgres: PostgresServer) -> int:
    with psycopg.connect(postgres.url) as conn:
        if conn.execute("SELECT to_regclass('message')").fetchone() == (None,):
            return 0
        row = conn.execute("SELECT count(*) FROM message").fetchone()
        return row[0] if row else 0


def _execute(postgres: PostgresServer, statement: str) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as conn:
        conn.execute(statement.encode())


@contextmanager
def _frozen(postgres: PostgresServer) -> Iterator[None]:
    """The postmaster first, which then makes no more children."""
    os.kill(postgres.pid, signal.SIGSTOP)
    everyone = [postgres.pid, *children(postgres.pid)]
    try:
        _signal(everyone, signal.SIGSTOP)
        yield
    finally:
        _signal(everyone, signal.SIGCONT)


def _signal(processes: list[int], number: signal.Signals) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
