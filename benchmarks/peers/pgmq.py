"""pgmq in a new Postgres, out of the SQL that its Python package has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from benchmarks.peers.peer import BATCH_SIZE, HOLD_S, WAIT_S, Received, Server
from benchmarks.peers.tools import Missing, Tools
from benchmarks.postgres import postgres

SENDERS = 64
SQL = "lib/python*/site-packages/pgmq/sql/pgmq.sql"


class PgmqConsumer:
    def __init__(self, connection: psycopg.AsyncConnection[tuple[Any, ...]], topic: str) -> None:
        self._connection = connection
        self._queue = _queue(topic)

    async def receive(self) -> Received:
        # It asks the table each 100 ms, its default, while there is nothing.
        rows = await self._connection.execute(
            "SELECT msg_id, message FROM pgmq.read_with_poll(%s::text, %s::integer, %s::integer, %s::integer)",
            (self._queue, HOLD_S, BATCH_SIZE, WAIT_S),
        )
        got = await rows.fetchall()
        return Received([message.encode() for _, message in got], [number for number, _ in got])

    async def ack(self, received: Received) -> None:
        await self._connection.execute("SELECT pgmq.delete(%s::text, %s::bigint[])", (self._queue, received.handle))


class PgmqClient:
    """psycopg: a pool of connections for sends, one for each consumer. Bodies are JSON strings."""

    def __init__(self, address: str, pool: Any) -> None:
        self._address = address
        self._pool = pool

    async def prepare(self, topic: str) -> None:
        await self._execute("SELECT pgmq.create(%s)", _queue(topic))

    async def send(self, topic: str, body: bytes) -> None:
        await self._execute("SELECT pgmq.send(%s::text, %s)", _queue(topic), Jsonb(body.decode()))

    async def send_batch(self, topic: str, bodies: Sequence[bytes]) -> None:
        messages = [Jsonb(body.decode()) for body in bodies]
        await self._execute("SELECT pgmq.send_batch(%s::text, %s::jsonb[])", _queue(topic), messages)

    @asynccontextmanager
    async def consumer(self, topic: str) -> AsyncIterator[PgmqConsumer]:
        async with await psycopg.AsyncConnection.connect(self._address, autocommit=True) as connection:
            yield PgmqConsumer(connection, topic)

    async def _execute(self, statement: str, *values: object) -> None:
        async with self._pool.connection() as connection:
            await connection.execute(statement, values)


def _queue(topic: str) -> str:
    return topic.replace("-", "_")


class Pgmq:
    name = "pgmq"
    sends = "on the disk (synchronous_commit on)"
    acks = "answered, on the disk"
    driven_by = "psycopg"
    compiles = False

    def install(self, tools: Tools) -> None:
        found = next(tools.python.parents[1].glob(SQL), None)
        if found is None:
            raise Missing("this version of the Python package pgmq does not have the SQL of pgmq")
        self._sql = found

    @contextmanager
    def running(self, folder: Path) -> Iterator[Server]:
        with postgres(folder, None) as server:
            url = server.new_database("bench")
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(self._sql.read_bytes())
                database = connection.info.server_version // 10_000
            version = self._sql.with_name("VERSION").read_text().strip()
            yield Server(url, server.pids()[:1], f"{version} in Postgres {database}")

    @asynccontextmanager
    async def client(self, address: str) -> AsyncIterator[PgmqClient]:
        from psycopg_pool import AsyncConnectionPool

        async with AsyncConnectionPool(address, max_size=SENDERS, kwargs={"autocommit": True}, open=False) as pool:
            yield PgmqClient(address, pool)
