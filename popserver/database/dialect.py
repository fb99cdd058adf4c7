"""The differences between the two databases.

Other modules do not ask which database they use. There are two exceptions: `database.py` opens the databases
differently, and `rows.py` compiles JSON functions for each.

SQLite has one writer, which needs no locks. Its driver releases the GIL at each step of a statement, and the event loop
takes it each time: under load, for 32 rows the switches cost more than the work. So a result is fetched as one row, and
one statement inserts many rows.

Postgres has other writers: more servers, and users' own transactions. So operations take locks, and operations that
choose rows skip locked ones. Its driver receives a whole result at once, and COPY is the fastest way to insert
several rows.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, ClassVar, Generic, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Executable,
    Integer,
    LargeBinary,
    Select,
    SmallInteger,
    Table,
    Text,
    case,
    cast,
    func,
    literal,
    literal_column,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite

from popserver.database.statement import Names, Statement, driver_errors, execute_text, raise_as_sqlalchemy_does

T = TypeVar("T")
# Runs a query and returns its rows, each as a sequence in the order of the columns.
Reader = Callable[[Connection, Names], Iterable[Sequence[Any]]]
Rows = Sequence[tuple[Any, ...]]

# The `info` of columns that `Dialect.insert` does not write: they keep their defaults.
NOT_INSERTED = {"inserted": False}
_ROWS_PER_STATEMENT_MAX = 64
COPY_TYPES = {BigInteger: "int8", Integer: "int4", SmallInteger: "int2", Text: "text", LargeBinary: "bytea"}


class Dialect(ABC):
    """What one database does differently."""

    name: ClassVar[str]
    # Whether other servers and users' own transactions write at the same time.
    has_other_writers: ClassVar[bool]
    # Whether each statement is a network round trip.
    is_remote: ClassVar[bool]
    # Whether the database extracts values from stored JSON faster than it returns the whole text.
    picks_json: ClassVar[bool]

    @abstractmethod
    def lock(self, conn: Connection, statement: Executable, names: Names | None = None) -> None:
        """Execute a statement that locks, and wait for the locks."""

    @abstractmethod
    def try_lock(self, conn: Connection, statement: Executable, names: Names | None = None) -> bool:
        """Execute a statement that takes one lock if it is free. Returns whether it was."""

    @abstractmethod
    def has_skipped(self, conn: Connection, statement: Executable, names: Names) -> bool:
        """Whether the query still finds a row: a statement skipped it, because another transaction has locked it."""

    @abstractmethod
    def reader(self, query: Select[Any]) -> Reader:
        """A function that fetches the rows of a query. A column `body` must be the last one."""

    @abstractmethod
    def insert(self, conn: Connection, table: Table, rows: Rows) -> None:
        """Insert rows, with the columns in the table's order, without generated keys and `NOT_INSERTED` columns.

        Raises SQLAlchemy's errors, such as `IntegrityError`.
        """

    @abstractmethod
    def upsert(self, table: Table) -> Any:
        """An INSERT with `on_conflict_do_update`."""

    @abstractmethod
    def json_list(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """A column's values as one JSON text; null or an empty list without rows."""

    @abstractmethod
    def joined(self, texts: ColumnElement[Any]) -> ColumnElement[Any]:
        """A column's texts, separated by commas; null without rows."""

    @abstractmethod
    def joined_bytes(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """A column's bytes, concatenated; null without rows."""

    @abstractmethod
    def id_text(self, message_id: ColumnElement[Any]) -> ColumnElement[Any]:
        """A stored message id as clients write it (`model.message.id_from_bytes`)."""

    @abstractmethod
    def walk_by_key(self, conn: Connection) -> None:
        """Make the plans of this transaction use an index scan, and not collect and sort rows."""

    @abstractmethod
    def size_bytes(self, conn: Connection) -> int:
        """How large the database is."""

    @abstractmethod
    def schema_elsewhere(self, conn: Connection) -> tuple[str, str] | None:
        """A schema with PopMQ's tables outside of the search path, and the schema that the connection uses; None if
        there is none, or if the URL names the search path."""

    @abstractmethod
    def damage(self, conn: Connection) -> str | None:
        """The first damage that the database's own check finds in its file; None if it finds none."""


class Sqlite(Dialect):
    name = "sqlite"
    has_other_writers = False
    is_remote = False
    picks_json = True

    def lock(self, conn: Connection, statement: Executable, names: Names | None = None) -> None:
        pass

    def try_lock(self, conn: Connection, statement: Executable, names: Names | None = None) -> bool:
        return True

    def has_skipped(self, conn: Connection, statement: Executable, names: Names) -> bool:
        return False

    def reader(self, query: Select[Any]) -> Reader:
        """Fetches all rows as one JSON text, with byte columns in hex, and the concatenated bodies with their sizes."""
        found = query.subquery()
        columns = [column for column in found.c if column.key != "body"]
        blobs = [index for index, column in enumerate(columns) if isinstance(column.type, LargeBinary)]
        texts = [func.hex(column) if index in blobs else column for index, column in enumerate(columns)]
        if "body" not in found.c:
            assert not blobs, "a query of bytes has a body"
            in_one = Statement(select(func.json_group_array(func.json_array(*texts))))
            return lambda conn, names: json.loads(in_one.execute(conn, names).fetchone()[0])
        sized = func.json_group_array(func.json_array(*texts, func.length(found.c.body)))
        with_bodies = Statement(select(sized, self.joined_bytes(found.c.body)))

        def read(conn: Connection, names: Names) -> list[list[Any]]:
            listed, bodies = with_bodies.execute(conn, names).fetchone()
            return _with_blobs(json.loads(listed), blobs, bodies)

        return read

    def insert(self, conn: Connection, table: Table, rows: Rows) -> None:
        """Few statements with many rows. Row counts are powers of two, so that there are few different statements."""
        start = 0
        while start < len(rows):
            count = min(_ROWS_PER_STATEMENT_MAX, 1 << (len(rows) - start).bit_length() - 1)
            parameters = tuple(chain.from_iterable(rows[start : start + count]))
            execute_text(conn, _insert_text(table, count, "?"), parameters)
            start += count

    def upsert(self, table: Table) -> Any:
        return sqlite.insert(table)

    def json_list(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.json_group_array(column)

    def joined(self, texts: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.group_concat(texts, ",")

    def joined_bytes(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        # group_concat concatenates the bytes unchanged, but declares the result as text.
        return cast(func.group_concat(column, ""), LargeBinary)

    def id_text(self, message_id: ColumnElement[Any]) -> ColumnElement[Any]:
        is_text = func.hex(func.substr(message_id, 1, 1)) == literal_column("'00'")
        return case((is_text, cast(func.substr(message_id, 2), Text)), else_=func.hex(message_id))

    def walk_by_key(self, conn: Connection) -> None:
        pass

    def size_bytes(self, conn: Connection) -> int:
        pages = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
        return int(conn.exec_driver_sql(pages).scalar_one())

    def schema_elsewhere(self, conn: Connection) -> tuple[str, str] | None:
        return None

    def damage(self, conn: Connection) -> str | None:
        found = str(conn.exec_driver_sql("PRAGMA integrity_check").scalar())
        if found == "ok":
            return None
        # A first line such as "*** in database main ***" is a heading.
        return next((line for line in found.splitlines() if not line.startswith("***")), found)


class Postgres(Dialect):
    name = "postgresql"
    has_other_writers = True
    is_remote = True
    picks_json = False

    def lock(self, conn: Connection, statement: Executable, names: Names | None = None) -> None:
        conn.execute(statement, names)

    def try_lock(self, conn: Connection, statement: Executable, names: Names | None = None) -> bool:
        return bool(conn.execute(statement, names).scalar_one())

    def has_skipped(self, conn: Connection, statement: Executable, names: Names) -> bool:
        return conn.execute(statement, names).first() is not None

    def reader(self, query: Select[Any]) -> Reader:
        statement = Statement(query)
        return lambda conn, names: statement.execute(conn, names).fetchall()

    def insert(self, conn: Connection, table: Table, rows: Rows) -> None:
        """One binary COPY. It costs a tenth of an INSERT with many rows, and is faster from a few rows on.

        A single row is a prepared INSERT, because a COPY is parsed each time and has two round trips.
        """
        if len(rows) == 1:
            execute_text(conn, _insert_text(table, 1, "%s"), rows[0])
            return
        driver: Any = conn.connection.driver_connection
        try:
            with driver.cursor() as cursor, cursor.copy(_copy_text(table)) as copy:
                copy.set_types(_copy_types(table))
                for row in rows:
                    copy.write_row(row)
        except driver_errors(conn) as error:
            raise_as_sqlalchemy_does(conn, driver, error)

    def upsert(self, table: Table) -> Any:
        return postgresql.insert(table)

    def json_list(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return cast(func.json_agg(column), Text)

    def joined(self, texts: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.string_agg(texts, ",")

    def joined_bytes(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.string_agg(column, literal(b"", LargeBinary))

    def id_text(self, message_id: ColumnElement[Any]) -> ColumnElement[Any]:
        is_text = func.get_byte(message_id, literal_column("0")) == literal_column("0")
        text = func.convert_from(func.substr(message_id, literal_column("2")), "UTF8")
        return case((is_text, text), else_=func.upper(func.encode(message_id, "hex")))

    def walk_by_key(self, conn: Connection) -> None:
        conn.execute(_WALK_BY_KEY)

    def size_bytes(self, conn: Connection) -> int:
        return int(conn.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())

    def schema_elsewhere(self, conn: Connection) -> tuple[str, str] | None:
        driver: Any = conn.connection.driver_connection
        if "search_path" in driver.info.get_parameters().get("options", ""):
            return None
        found = conn.exec_driver_sql(_ELSEWHERE).first()
        return None if found is None else (str(found[0]), str(found[1]))

    def damage(self, conn: Connection) -> str | None:
        return None


_DIALECTS: dict[str, Dialect] = {each.name: each() for each in (Sqlite, Postgres)}


def dialect_of(conn: Connection) -> Dialect:
    """The dialect of the database behind a connection."""
    return _DIALECTS[conn.dialect.name]


class PerDialect(Generic[T]):
    """A value that is made once for each database, such as a statement."""

    def __init__(self, make: Callable[[Dialect], T]) -> None:
        self._made = {name: make(dialect) for name, dialect in _DIALECTS.items()}

    def of(self, conn: Connection) -> T:
        return self._made[conn.dialect.name]


def _with_blobs(listed: list[list[Any]], blobs: Sequence[int], bodies: bytes | None) -> list[list[Any]]:
    """Replace the last column of each row, the size of its body, by the body; null stays null."""
    start = 0
    for columns in listed:
        for index in blobs:
            columns[index] = bytes.fromhex(columns[index])
        if (size := columns[-1]) is not None:
            columns[-1] = bodies[start : start + size] if bodies else b""
            start += size
    return listed


@lru_cache(maxsize=256)
def _insert_text(table: Table, count: int, place: str) -> str:
    row = f"({', '.join([place] * len(inserted_columns(table)))})"
    return f"INSERT INTO {table.name} ({_names(table)}) VALUES {', '.join([row] * count)}"  # noqa: S608 - names are ours


@lru_cache(maxsize=16)
def _copy_text(table: Table) -> str:
    return f"COPY {table.name} ({_names(table)}) FROM STDIN (FORMAT BINARY)"


@lru_cache(maxsize=16)
def _copy_types(table: Table) -> list[str]:
    return [COPY_TYPES[type(column.type)] for column in inserted_columns(table)]


def _names(table: Table) -> str:
    return ", ".join(column.name for column in inserted_columns(table))


def inserted_columns(table: Table) -> list[Column[Any]]:
    """The columns for which an insert has values, in the table's order."""
    return [each for each in table.columns if each is not table.autoincrement_column and each.info != NOT_INSERTED]


_WALK_BY_KEY = select(
    *(func.set_config(name, "off", literal_column("true")) for name in ("enable_bitmapscan", "enable_seqscan")),
    func.set_config("max_parallel_workers_per_gather", "0", literal_column("true")),
)
_ELSEWHERE = """
SELECT n.nspname, COALESCE(current_schema(), 'empty') FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = 'message_group_progress' AND c.relkind = 'r' AND has_schema_privilege(n.oid, 'USAGE')
LIMIT 1
"""
