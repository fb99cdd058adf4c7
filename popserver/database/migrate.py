"""Creates or upgrades the schema of a database, and refuses a newer schema.

An empty database gets the schema of `database.schema` in one step. The migrations lead to the same schema; a test
compares both. Alembic migrates older databases and is imported only for that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from sqlalchemy import Connection, inspect, text

from popserver.database import notifications
from popserver.database.database import Database, plain_errors
from popserver.database.dialect import dialect_of
from popserver.database.schema import metadata
from popserver.database.views import VIEWS
from popserver.model import message, names
from popserver.model.errors import StoreUnavailable
from popserver.model.group import HistoryLevel
from popserver.model.handles import VERSIONS
from popserver.model.message import BodyEncoding
from popserver.model.states import ACKED, Event, PendingKind, State, sources, target
from popserver.model.times import TIME_MS_MAX
from popserver.model.topic import MessageType


def script_location() -> Path:
    """The folder of the migrations: inside the installed package, or beside it in a checkout."""
    packaged = Path(__file__).parents[1] / "migrations"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "migrations"


# The newest migration, whose file has its number.
HEAD = max(each.name[:4] for each in (script_location() / "versions").glob("[0-9]*.py"))
UNFINISHED_COPY = "unfinished_copy"  # the table of a database into which `database.copying` still writes
FIRST = "0100"  # of 1.0.0; no migration leads from those of development versions, which have lower numbers
# Only one server at a time migrates, if several start at the same time. All servers must use this number.
LOCK = f"SELECT pg_advisory_xact_lock({0x706F706D71})"
_ADVISORY_LOCK = text(LOCK)


def revision(database: Database) -> str | None:
    """The schema's revision; None for an empty database. Raises `StoreUnavailable` for an unfinished copy."""
    with plain_errors(database.name), database.reading.connect() as conn:
        return _revision(conn, database.name)


def upgrade(database: Database, to: str = HEAD) -> str | None:
    """Upgrade the schema to revision `to`. Returns the revision that it had before.

    Raises `StoreUnavailable` for a schema newer than this code or older than `FIRST`, and for another program's tables.
    """
    with changing_schema(database) as conn:
        before = _revision(conn, database.name)
        if before is None and to == HEAD:
            check_no_strangers(conn, database.name)
            create(conn)
        elif before is not None and before > HEAD:
            raise _newer(database.name, before)
        elif before is not None and before < FIRST:
            raise _too_old(database.name, before)
        elif before != to:
            _run("upgrade", conn, to)
    return before


def downgrade(database: Database, to: str) -> None:
    """Downgrade the schema to an older revision. `base` drops all of PopMQ's tables."""
    with changing_schema(database) as conn:
        _run("downgrade", conn, to)


def check(database: Database) -> None:
    """Raise `StoreUnavailable` unless the schema has exactly this code's revision."""
    found = revision(database)
    if found is None:
        raise StoreUnavailable(f"{database.name} has no schema yet; create it with: {_upgrading(database)}")
    if found > HEAD:
        raise _newer(database.name, found)
    if found < FIRST:
        raise _too_old(database.name, found)
    if found < HEAD:
        raise StoreUnavailable(
            f"{database.name} has schema {found}, this popmq needs {HEAD}; upgrade it with: {_upgrading(database)}"
        )


def check_unchanged(database: Database) -> None:
    """Raise `StoreUnavailable` unless the database has this code's schema, which the running servers use too."""
    found = revision(database)
    if found is None or found < HEAD:
        raise StoreUnavailable(
            f"{database.name} has schema {found}, and this popmq needs the newer schema {HEAD}, which workers that run"
            " cannot use; stop the server, then start it: the start upgrades the schema"
        )
    check(database)


def _upgrading(database: Database) -> str:
    return f"popmq db upgrade --database-url {database.name}"


def create(conn: Connection) -> None:
    """Create all tables, views and functions in an empty database, and note the revision."""
    metadata.create_all(conn)
    complete(conn)


def complete(conn: Connection) -> None:
    """Create the views and functions of a database that has its tables, and note the revision."""
    for name, query in VIEWS.items():
        conn.exec_driver_sql(f"CREATE VIEW {name} AS {query}")
    functions_create(conn, script_location() / "functions.sql")
    conn.exec_driver_sql("CREATE TABLE IF NOT EXISTS alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
    conn.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})


def drop(conn: Connection) -> None:
    """Drop all that `create` makes, complete or not. No other program may have tables of these names there."""
    functions_drop(conn)
    for name in reversed(VIEWS):
        conn.exec_driver_sql(f"DROP VIEW IF EXISTS {name}")
    metadata.drop_all(conn)
    conn.exec_driver_sql("DROP TABLE IF EXISTS alembic_version")


def check_no_strangers(conn: Connection, name: str) -> None:
    """Raise `StoreUnavailable` if a database without our schema has tables of our names, or has ours elsewhere."""
    if (elsewhere := dialect_of(conn).schema_elsewhere(conn)) is not None:
        schema, path = elsewhere
        raise StoreUnavailable(
            f"{name} has PopMQ's tables in the schema {schema}, and its search_path is {path}; put {schema} into the"
            f" search_path of the role or the database, or ask for new tables with ?options=-csearch_path%3D{path}"
        )
    strangers = set(inspect(conn).get_table_names()) & set(metadata.tables)
    if strangers:
        raise StoreUnavailable(
            f"{name} has tables of another program ({', '.join(sorted(strangers))}); choose an empty database"
        )


@contextmanager
def changing_schema(database: Database) -> Iterator[Connection]:
    """A transaction that changes the schema; on Postgres one server at a time has it."""
    with plain_errors(database.name), database.writing.connect() as conn:
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


def has_schema(conn: Connection) -> bool:
    """Whether the database has the number of a schema."""
    return inspect(conn).has_table("alembic_version")


def _revision(conn: Connection, name: str) -> str | None:
    if not has_schema(conn):
        if inspect(conn).has_table(UNFINISHED_COPY):
            raise StoreUnavailable(
                f"{name} holds an unfinished copy of another database, so it cannot be used; repeat popmq db copy,"
                " which continues it, or begins anew with --restart"
            )
        return None
    return conn.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _too_old(name: str, found: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{name} has schema {found} of a development version, and no migration leads from it to {HEAD}; use that"
        " version, or an empty database"
    )


def _newer(name: str, found: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{name} has schema {found}, newer than this popmq's {HEAD}; use the newer popmq, or a backup from before"
    )


# The SQL functions on Postgres, which users call in their own transactions (`popmq_enqueue`, `popmq_ack`).
#
# Their text is `functions.sql` beside the migrations. This module fills in its limits, states and names, from the same
# constants that the server uses. SQLite has no such functions, because the broker is its only writer.

NAMES = ("popmq_enqueue", "popmq_ack")


def functions_create(conn: Connection, file: Path) -> None:
    """Create the functions of the file in the schema of the tables. Does nothing on SQLite."""
    if dialect_of(conn).has_other_writers:
        # Without parameters, because the text has many percent signs.
        conn.exec_driver_sql(functions_text(conn, file), execution_options={"no_parameters": True})


def functions_text(conn: Connection, file: Path) -> str:
    """The statements that create the functions in the current schema of a connection to Postgres."""
    return render(file.read_text(), schema_of(conn))


def schema_of(conn: Connection) -> str:
    """The schema of PopMQ's tables on Postgres, as an identifier of SQL."""
    return str(conn.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one())


def functions_drop(conn: Connection) -> None:
    """Drop the functions."""
    if dialect_of(conn).has_other_writers:
        for name in NAMES:
            conn.exec_driver_sql(f"DROP FUNCTION IF EXISTS {name}")


def render(text: str, schema: str) -> str:
    """The text with its values filled in: `schema` unchanged, all others as SQL literals.

    Raises `KeyError` for a word without a value.
    """
    values = {"schema": schema} | {name: sql_literal(value) for name, value in VALUES.items()}
    return _WORD.sub(lambda found: values[found[1]], text)


def sql_literal(value: int | str | Iterable[int | str]) -> str:
    """An SQL literal, or several separated by commas."""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return ", ".join(map(sql_literal, sorted(value)))


_WORD = re.compile(r"(?<!:):([a-z_]+)")
VALUES: dict[str, int | str | Iterable[int | str]] = {
    # States and events.
    "held": sources(Event.ACK_IN_TRANSACTION),
    "acked": ACKED,
    "acked_in_transaction": target(Event.ACK_IN_TRANSACTION),
    "ack": Event.ACK,
    "inflight": State.INFLIGHT,
    "commit": target(Event.ACK),
    "history_all": HistoryLevel.ALL,
    "handle_versions": VERSIONS,
    # Rules for messages.
    "type_normal": MessageType.NORMAL,
    "type_fifo": MessageType.FIFO,
    "type_delay": MessageType.DELAY,
    "type_priority": MessageType.PRIORITY,
    "body_identity": BodyEncoding.IDENTITY,
    "pending_delay": PendingKind.DELAY,
    "body_bytes_max": message.BODY_BYTES_MAX,
    "message_id_length_max": message.MESSAGE_ID_LENGTH_MAX,
    "message_group_bytes_max": message.MESSAGE_GROUP_BYTES_MAX,
    "priority_max": message.PRIORITY_MAX,
    "properties_max": message.PROPERTIES_MAX,
    "properties_bytes_max": message.PROPERTIES_BYTES_MAX,
    "reserved_properties": message.RESERVED_PROPERTIES,
    "time_ms_max": TIME_MS_MAX,
    "idempotency_property": message.PROPERTY,
    "idempotency_bytes_max": message.KEY_BYTES_MAX,
    "dead_letter_prefix": names.DEAD_LETTER_PREFIX,
    "retry_prefix": names.RETRY_PREFIX,
    # Notifications.
    "channel": notifications.CHANNEL,
    "signal_due": notifications.DUE,
    "signal_pending": notifications.PENDING,
}
