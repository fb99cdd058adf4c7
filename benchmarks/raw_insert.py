"""The database's own insert rate: the rows of the send cases, into the same table with the same indexes, durable.

There is no gRPC, there are no queue counters, one thread does nothing else, and the rows are made before the measured
time. The statements are the fastest for the driver: 64 rows per VALUES on SQLite, and binary COPY on Postgres, which is
two to five times as fast as INSERT statements.

There are two sizes of transactions, because the rate depends on it:
- 32 rows, as in one request: the upper bound for one caller, whose requests are committed one by one.
- 512 rows: the upper bound for 64 callers. Their requests share commits of a few hundred to 2,048 rows, at which both
  databases have their best rate.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.filling import new_messages
from benchmarks.machine import pin
from popserver.catalog.topics import ensure_topic
from popserver.database import migrate
from popserver.database.database import Database
from popserver.database.dialect import inserted_columns
from popserver.database.schema import message
from popserver.engine.transaction import Transaction
from popserver.messages import stored
from popserver.model.names import Resource
from popserver.model.topic import NewTopic, message_key

_TOPIC = "bench-insert"
_ROWS_PER_STATEMENT = 64


def insert_rate(database_url: str, per_transaction: int, seconds: float, cores: set[int] | None) -> float:
    """Rows per second, measured in a separate process on the server's core."""
    command = [sys.executable, "-m", "benchmarks.raw_insert", database_url, str(per_transaction), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        pin(process.pid, cores)
        said, _ = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return float(json.loads(said))


def _measure(database_url: str, per_transaction: int, seconds: float) -> float:
    database = Database(database_url)
    migrate.upgrade(database)
    made, spent, count = new_messages(_TOPIC, sys.maxsize, 1_024), 0.0, 0
    with database.connect_writer() as conn:
        database.begin(conn)
        now_ms = time.time_ns() // 1_000_000
        topic = ensure_topic(Transaction.at(conn, now_ms), NewTopic(Resource("", _TOPIC)))
        # After the rows of an earlier measurement.
        first = message_key(topic.queues[0].queue_id, time.time_ns() & (1 << 39) - 1)
        conn.exec_driver_sql("COMMIT")
        cursor: Any = conn.connection.cursor()
        insert = _insert_many_values if database.is_sqlite else _copy
        begin = "BEGIN IMMEDIATE" if database.is_sqlite else "BEGIN"
        while spent < seconds:
            rows = stored._rows(now_ms, topic, first + count, list(itertools.islice(made, per_transaction)))
            begun = time.perf_counter()
            cursor.execute(begin)
            insert(cursor, rows)
            cursor.execute("COMMIT")
            spent += time.perf_counter() - begun
            count += len(rows)
    database.close()
    return count / spent


def _insert_many_values(cursor: Any, rows: Sequence[tuple[Any, ...]]) -> None:
    for start in range(0, len(rows), _ROWS_PER_STATEMENT):
        some = rows[start : start + _ROWS_PER_STATEMENT]
        cursor.execute(_text(len(some)), list(itertools.chain.from_iterable(some)))


def _copy(cursor: Any, rows: Sequence[tuple[Any, ...]]) -> None:
    columns = inserted_columns(message)
    names = ", ".join(column.name for column in columns)
    with cursor.copy(f"COPY message ({names}) FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types([_PG_TYPES[str(column.type)] for column in columns])
        for row in rows:
            copy.write_row(row)


_PG_TYPES = {"BIGINT": "int8", "INTEGER": "int4", "SMALLINT": "int2", "TEXT": "text", "BLOB": "bytea"}


def _text(rows: int) -> str:
    columns = [column.name for column in inserted_columns(message)]
    row = f"({', '.join('?' * len(columns))})"
    return f"INSERT INTO message ({', '.join(columns)}) VALUES {', '.join([row] * rows)}"


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))
