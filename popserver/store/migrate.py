"""Brings a database's schema to the one this code speaks, and refuses a newer one.

An empty database is made from `schema` in one step, and the migrations end at the same schema (a test compares the
two). Alembic migrates an older database; it is imported only then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from sqlalchemy import Connection, inspect, text

from popserver.domain.errors import StoreUnavailable
from popserver.store import functions
from popserver.store.database import Database, said_plainly
from popserver.store.dialect import dialect_of
from popserver.store.schema import VIEWS, metadata

HEAD = "0001"
# Any number, as long as every server takes the same: two servers that start at once must not both migrate.
_ADVISORY_LOCK = text(f"SELECT pg_advisory_xact_lock({0x706F706D71})")


def revision(database: Database) -> str | None:
    """The schema's revision; None for an empty database."""
    with said_plainly(database.name), database.reading.connect() as conn:
        return _revision(conn)


def upgrade(database: Database, to: str = HEAD) -> str | None:
    """Bring the schema to revision `to`; returns the revision it was at.

    Raises `StoreUnavailable` for a schema newer than this code, and for a database that holds other tables.
    """
    with _transaction(database) as conn:
        before = _revision(conn)
        if before is None and to == HEAD:
            _create(conn, database.name)
        elif before is not None and before > HEAD:
            raise _newer(database.name, before)
        elif before != to:
            _run("upgrade", conn, to)
    return before


def downgrade(database: Database, to: str) -> None:
    """Take the schema back to an older revision, or with `base` to none at all: every table of ours is dropped."""
    with _transaction(database) as conn:
        _run("downgrade", conn, to)


def check(database: Database) -> None:
    """Raise `StoreUnavailable` unless the schema is exactly this code's."""
    found = revision(database)
    if found is None:
        raise StoreUnavailable(f"{database.name} has no schema yet; make it with: {_upgrading(database)}")
    if found > HEAD:
        raise _newer(database.name, found)
    if found < HEAD:
        raise StoreUnavailable(
            f"{database.name} has schema {found}, this popmq needs {HEAD}; bring it there with: {_upgrading(database)}"
        )


def script_location() -> Path:
    """Where the migrations stand: inside the installed package, or beside it in a checkout."""
    packaged = Path(__file__).parents[1] / "migrations"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "migrations"


def _upgrading(database: Database) -> str:
    return f"popmq db upgrade --database-url {database.name}"


def create(conn: Connection) -> None:
    """Make every table, view and function in an empty database."""
    metadata.create_all(conn)
    for name, query in VIEWS.items():
        conn.exec_driver_sql(f"CREATE VIEW {name} AS {query}")
    functions.create(conn, script_location() / "functions.sql")


def drop(conn: Connection) -> None:
    """Drop everything that `create` makes."""
    functions.drop(conn)
    for name in reversed(VIEWS):
        conn.exec_driver_sql(f"DROP VIEW {name}")
    metadata.drop_all(conn)


def _create(conn: Connection, name: str) -> None:
    strangers = set(inspect(conn).get_table_names()) & set(metadata.tables)
    if strangers:
        raise StoreUnavailable(
            f"{name} holds tables of another program ({', '.join(sorted(strangers))}); name an empty database"
        )
    create(conn)
    conn.exec_driver_sql("CREATE TABLE IF NOT EXISTS alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
    conn.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})


@contextmanager
def _transaction(database: Database) -> Iterator[Connection]:
    """Everything or nothing, and on Postgres one server at a time."""
    with said_plainly(database.name), database.writing.connect() as conn:
        database.begin(conn)
        try:
            dialect_of(conn).lock(conn, _ADVISORY_LOCK)
            yield conn
            conn.exec_driver_sql("COMMIT")
        except BaseException:
            conn.exec_driver_sql("ROLLBACK")
            raise


def _run(step: Literal["upgrade", "downgrade"], conn: Connection, to: str) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config(attributes={"connection": conn})
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    getattr(command, step)(config, to)


def _revision(conn: Connection) -> str | None:
    if not inspect(conn).has_table("alembic_version"):
        return None
    found: str | None = conn.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return found


def _newer(name: str, found: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{name} has schema {found}, newer than this popmq's {HEAD}; use the newer popmq, or a backup from before"
    )
