"""What a run measures: of the server's process, of its metrics, and of its store."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, make_url, text

from popserver.database.schema import metadata
from proof.soak.level import Bar
from tests.support import http_client as http
from tests.support.final_state import looking
from tests.support.server_process import ServerProcess

MIB = 1 << 20
ROWS = "rows of "
# What each measure may grow by from the end of the warm-up to the end of the run, however long that is.
BARS = {
    "memory, MiB": Bar(0.05, 6),
    "open files": Bar(0.1, 6),
    "threads": Bar(0, 2),
    "event loop tasks": Bar(0.1, 20),
    "SQLite file, MiB": Bar(0.15, 2),
    "WAL, MiB": Bar(0.25, 4),
    "tables, MiB": Bar(0.25, 4),
    "indexes, MiB": Bar(0.25, 4),
    "dead rows": Bar(0.5, 5_000),
    "ms between messages": Bar(0.5, 0.5),  # clients get as much as at the beginning
    "CPU ms per message": Bar(0.6, 0.1),
    "ms per transaction": Bar(2, 50),  # other programs on the machine delay it too
    "Postgres ms per message": Bar(0.6, 0.5),
    "cost, ms per message": Bar(0.6, 0.5),
    "blocks per message": Bar(0.6, 5),
}
ROWS_BAR = Bar(0.25, 300)

_SIZES = """
SELECT sum(pg_table_size(relid)), sum(pg_indexes_size(relid)), sum(n_dead_tup) FROM pg_stat_user_tables
"""
_OF_POSTGRES = "SELECT active_time, blks_hit + blks_read FROM pg_stat_database WHERE datname = current_database()"
_SAMPLE = re.compile(r"^(?P<name>\w+)(\{.*\})? (?P<value>\S+)$", re.MULTILINE)


def bar_of(measure: str) -> Bar:
    return BARS.get(measure, ROWS_BAR)


class _Totals(NamedTuple):
    """What only grows; its differences are costs."""

    at_s: float
    messages: float  # received or pulled
    cpu_s: float
    transactions: float  # of the server's writer
    transactions_s: float
    of_postgres: tuple[float, float] | None  # ms in statements, and blocks that they have read


class Sampler:
    """Takes samples of one server. `counts_rows`: also how many rows each table has, which reads them all."""

    def __init__(self, server: ServerProcess, database_url: str, *, counts_rows: bool = True) -> None:
        self._server = server
        self._url = database_url
        self._is_sqlite = database_url.startswith("sqlite")
        self._counts_rows = counts_rows
        self._http = server.ready_line.partition("http=")[2].split()[0]
        self._before: _Totals | None = None
        self.messages = 0.0

    async def take(self) -> dict[str, float]:
        """One value of each measure. Costs are those since the sample before, so the first sample has none.

        Raises AssertionError when the server has ended.
        """
        assert self._server.is_running, f"the server has ended: {self._server.stderr[-2_000:]}"
        numbers = _totals_of((await http.get(self._http, "/metrics")).text)
        found = process_of(self._server.pid)
        found["event loop tasks"] = numbers["popmq_event_loop_tasks"]
        with looking(self._url) as conn:
            found |= self._store(conn, numbers)
            active_ms, blocks = (0, 0) if self._is_sqlite else conn.execute(text(_OF_POSTGRES)).one()
        now = _Totals(
            time.monotonic(),
            numbers.get("rocketmq_messages_out_total", 0),
            self._server.cpu_s(),
            numbers["popmq_transaction_seconds_count"],
            numbers["popmq_transaction_seconds_sum"],
            None if self._is_sqlite else (float(active_ms), float(blocks)),
        )
        found |= _costs(self._before, now)
        self._before, self.messages = now, now.messages
        return found

    def _store(self, conn: Connection, numbers: Mapping[str, float]) -> dict[str, float]:
        if self._is_sqlite:
            file = Path(make_url(self._url).database or "")
            found = {"SQLite file, MiB": file.stat().st_size / MIB, "WAL, MiB": numbers["popmq_wal_bytes"] / MIB}
        else:
            tables, indexes, dead = conn.execute(text(_SIZES)).one()
            found = {"tables, MiB": int(tables) / MIB, "indexes, MiB": int(indexes) / MIB, "dead rows": float(dead)}
        if self._counts_rows:
            for table in metadata.tables:
                found[ROWS + table] = float(conn.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())
        return found


def process_of(pid: int) -> dict[str, float]:
    """Of a process, as Linux tells it."""
    folder = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    return {
        "memory, MiB": int(status["VmRSS"].split()[0]) / 1024,
        "threads": float(status["Threads"]),
        "open files": float(sum(1 for _ in (folder / "fd").iterdir())),
    }


def _costs(before: _Totals | None, now: _Totals) -> dict[str, float]:
    if before is None:
        return {}
    messages = now.messages - before.messages
    found = {"ms between messages": (now.at_s - before.at_s) * 1_000 / max(1.0, messages)}
    if not messages:
        return found
    found |= {
        "CPU ms per message": (now.cpu_s - before.cpu_s) * 1_000 / messages,
        "ms per transaction": (now.transactions_s - before.transactions_s)
        * 1_000
        / max(1.0, now.transactions - before.transactions),
    }
    if now.of_postgres is not None and before.of_postgres is not None:
        active_ms, blocks = (each - old for each, old in zip(now.of_postgres, before.of_postgres, strict=True))
        found |= {"Postgres ms per message": active_ms / messages, "blocks per message": blocks / messages}
        found["cost, ms per message"] = found["CPU ms per message"] + found["Postgres ms per message"]
    return found


def _totals_of(exposition: str) -> dict[str, float]:
    """The sum of each metric over its labels."""
    totals: dict[str, float] = {}
    for each in _SAMPLE.finditer(exposition):
        totals[each["name"]] = totals.get(each["name"], 0.0) + float(each["value"])
    return totals
