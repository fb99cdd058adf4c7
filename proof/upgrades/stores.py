"""What a store holds, read past every server, and what must be the same in two readings."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, create_engine, inspect, make_url, text
from sqlalchemy.engine import Engine

from popserver.database.check import check_integrity
from popserver.model.errors import StoreUnavailable
from tests.support.final_state import looking

VERSION = "alembic_version"
# What users read; the columns that a version had keep what they said.
VIEWS = ("message_state", "group_lag", "dead_letters", "lineage", "group_pauses")


class Rows(NamedTuple):
    """A table or a view: its columns, and how often it has each row."""

    columns: tuple[str, ...]
    rows: Counter[tuple[Any, ...]]

    def of(self, columns: tuple[str, ...]) -> Counter[tuple[Any, ...]]:
        places = [self.columns.index(name) for name in columns]
        sums: Counter[tuple[Any, ...]] = Counter()
        for row, count in self.rows.items():
            sums[tuple(row[place] for place in places)] += count
        return sums


Content = dict[str, Rows]


def content(database_url: str) -> Content:
    """Every row of every table and of the views."""
    with looking(database_url) as conn:
        names = [*inspect(conn).get_table_names(), *(set(inspect(conn).get_view_names()) & set(VIEWS))]
        return {name: _rows(conn, name) for name in names}


def _rows(conn: Connection, name: str) -> Rows:
    result = conn.execute(text(f'SELECT * FROM "{name}"'))
    return Rows(tuple(result.keys()), Counter(tuple(_plain(value) for value in row) for row in result))


def _plain(value: object) -> object:
    return bytes(value) if isinstance(value, memoryview) else value


def revision(found: Content) -> str:
    ((number,),) = found[VERSION].rows
    return str(number)


def differences(before: Content, after: Content) -> list[str]:
    """What is not as before: in the tables, views and columns that there were, each row is there, and no other."""
    told = []
    for name, old in before.items():
        if name == VERSION:
            continue
        if name not in after:
            told.append(f"{name} is gone")
        elif missing := set(old.columns) - set(after[name].columns):
            told.append(f"{name} has no {', '.join(sorted(missing))} any more")
        else:
            now = after[name].of(old.columns)
            told += [f"{name} lost {row} ({count})" for row, count in (old.rows - now).items()]
            told += [f"{name} has a new {row} ({count})" for row, count in (now - old.rows).items()]
    return told


def unsound(database_url: str) -> list[str]:
    """What the store's own check finds (I13)."""
    with looking(database_url) as conn:
        try:
            check_integrity(conn)
        except StoreUnavailable as error:
            return [error.sentence]
    return []


def fingerprint(database_url: str) -> str:
    """Of a SQLite file its bytes with those of its WAL; of Postgres nothing, whose rows are compared instead.

    Whoever closes a file after a kill first moves its WAL into it, also a server that refuses it. So does this.
    """
    file = make_url(database_url).database or ""
    if not database_url.startswith("sqlite"):
        return ""
    with contextlib.closing(sqlite3.connect(file)) as conn:
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    digest = hashlib.sha256()
    for path in (Path(file), Path(f"{file}-wal")):
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()


def set_revision(database_url: str, number: str) -> None:
    """Write another number of the schema into the store."""
    engine = _engine(database_url)
    with engine.begin() as conn:
        conn.execute(text(f"UPDATE {VERSION} SET version_num = :number"), {"number": number})
    engine.dispose()


def waits_for_lock(database_url: str) -> bool:
    """Whether somebody waits for the lock that a migration of Postgres holds."""
    with looking(database_url) as conn:
        waiting = text("SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        return bool(conn.execute(waiting).scalar_one())


def _engine(database_url: str) -> Engine:
    url = make_url(database_url)
    return create_engine(url if url.get_backend_name() == "sqlite" else url.set(drivername="postgresql+psycopg"))
