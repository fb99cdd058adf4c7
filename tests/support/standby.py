"""A standby that streams from a Postgres; nothing promotes it by itself."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from tests.support.postgres import PostgresServer, _run, new_folder
from tests.support.waiting import soon

_BEHIND = "SELECT pg_last_wal_replay_lsn() < %s::pg_lsn"


@contextmanager
def standby_of(primary: PostgresServer) -> Iterator[PostgresServer]:
    """It has what the primary has now."""
    folder = new_folder()
    standby = PostgresServer(folder, durable=False)
    try:
        _run("pg_basebackup", "-d", primary.url, "-D", str(standby.data), "-R", "--checkpoint=fast", "--no-sync")
        standby.restart()
        with psycopg.connect(primary.url) as conn:
            now = conn.execute("SELECT pg_current_wal_lsn()").fetchone()
        assert now is not None
        with psycopg.connect(standby.url, autocommit=True) as conn:
            soon(lambda: conn.execute(_BEHIND, now).fetchone() == (False,))
        yield standby
    finally:
        standby.stop()
        shutil.rmtree(folder, ignore_errors=True)
