# ruff: noqa: S608 - the names in the statements are our own
"""What the two databases do differently at the two ends of a copy.

Rows do not pass through SQLAlchemy: both drivers give and take whole tuples. Postgres gives them by a cursor, because
its driver waits for each row of a COPY anew, and takes them by COPY, both in its binary format.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final, NamedTuple

from sqlalchemy import BigInteger, Column, Connection, Integer, LargeBinary, SmallInteger, Table, Text, bindparam, text

from popserver.database.copying.pages import PAGE_ROWS, Key, Row, counts_of, has_bodies
from popserver.database.dialect import COPY_TYPES, dialect_of
from popserver.database.migrate import sql_literal
from popserver.database.schema import metadata
from popserver.database.statement import driver_errors, raise_as_sqlalchemy_does
from popserver.model.errors import StoreUnavailable

_RANGES: Final[Mapping[type[Any], int]] = {
    SmallInteger: 1 << 15,
    Integer: 1 << 31,
    BigInteger: 1 << 63,
}  # of the types on Postgres


class IndexText(NamedTuple):
    """An index or a constraint with an index: the statements that drop it and create it again."""

    name: str
    drop: str
    create: str


class CopyEnd(ABC):
    """One kind of database, as the source or the target of a copy."""

    is_strict: ClassVar[bool]  # it refuses a value that does not have its column's type, and a zero byte in a text

    @abstractmethod
    def keep_unchanged(self, conn: Connection) -> None:
        """Let no other transaction change the rows until the end of this one, which has read nothing yet."""

    @abstractmethod
    def rows(
        self, conn: Connection, table: Table, *, after: Key | None = None, until: Key | None = None
    ) -> Generator[Row, None, None]:
        """The rows in the order of the primary key, texts in the order of their bytes: those behind the key `after`, up
        to the key `until`."""

    @abstractmethod
    def write(self, conn: Connection, table: Table, rows: Sequence[Row]) -> None:
        """Insert whole rows."""

    @abstractmethod
    def indexes(self, conn: Connection) -> list[IndexText]:
        """The indexes of all tables that a copy may create after the rows."""

    @abstractmethod
    def prepare_load(self, conn: Connection) -> None:
        """Settings of the writing connection for many rows."""

    @abstractmethod
    def analyze(self, conn: Connection) -> None:
        """Let the database count its rows, so that it plans well from the first statement on."""

    @abstractmethod
    def make_durable(self, conn: Connection) -> None:
        """From now on a COMMIT waits for the disk; it takes all earlier ones with it."""

    @abstractmethod
    def finish(self, conn: Connection) -> None:
        """What remains to do after the last COMMIT."""

    @abstractmethod
    def last_id(self, conn: Connection, table: Table) -> int:
        """The highest id that the database has given a row of the table, also of one that was removed since."""

    @abstractmethod
    def set_last_id(self, conn: Connection, table: Table, last_id: int) -> None:
        """Let the next id be higher than this one."""

    @abstractmethod
    def misfit(self, conn: Connection, table: Table) -> str | None:
        """The first value that does not have its column's type, or that Postgres cannot hold, in words; None if there
        is none."""

    @abstractmethod
    def identity(self, conn: Connection) -> str:
        """The same text for the same database, by whatever URL it was opened."""


class SqliteEnd(CopyEnd):
    is_strict = False

    def keep_unchanged(self, conn: Connection) -> None:
        """The lock of the file does."""

    def rows(
        self, conn: Connection, table: Table, *, after: Key | None = None, until: Key | None = None
    ) -> Generator[Row, None, None]:
        key = ", ".join(_key_names(table))
        places = f"({', '.join('?' * len(table.primary_key))})"
        where = _where(f"({key})", places if after else "", places if until else "")
        query = f"SELECT {_names(table)} FROM {table.name}{where} ORDER BY {key}"
        with _driver(conn) as driver:
            try:
                yield from driver.execute(query, (*(after or ()), *(until or ())))
            except driver_errors(conn) as error:
                if "decode" not in str(error):
                    raise
                raise StoreUnavailable(
                    f"table {table.name} of the source has a text that is not UTF-8 ({error}), which PopMQ never"
                    " writes; correct it, and repeat with --restart"
                ) from None

    def write(self, conn: Connection, table: Table, rows: Sequence[Row]) -> None:
        places = ", ".join("?" * len(table.columns))
        with _driver(conn) as driver:
            driver.executemany(f"INSERT INTO {table.name} ({_names(table)}) VALUES ({places})", rows)

    def indexes(self, conn: Connection) -> list[IndexText]:
        found = conn.execute(_SQLITE_INDEXES, {"tables": list(metadata.tables)}).all()
        return [IndexText(name, f"DROP INDEX {name}", created) for name, created in found]

    def prepare_load(self, conn: Connection) -> None:
        # An index is sorted in files, unless SQLite is built to sort in memory, as that of pysqlite3 is.
        conn.exec_driver_sql("PRAGMA temp_store = FILE")

    def analyze(self, conn: Connection) -> None:
        """A server's SQLite plans without counts."""

    def make_durable(self, conn: Connection) -> None:
        conn.exec_driver_sql("PRAGMA synchronous = FULL")

    def finish(self, conn: Connection) -> None:
        conn.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    def last_id(self, conn: Connection, table: Table) -> int:
        return int(conn.execute(_SQLITE_LAST_ID, {"name": table.name}).scalar() or 0)

    def set_last_id(self, conn: Connection, table: Table, last_id: int) -> None:
        conn.execute(_SQLITE_FORGET_ID, {"name": table.name})
        if last_id:
            conn.execute(_SQLITE_SET_ID, {"name": table.name, "last_id": last_id})

    def misfit(self, conn: Connection, table: Table) -> str | None:
        wrong = {column.name: _misfits(column) for column in table.columns}
        named = " ".join(f"WHEN {condition} THEN '{name}'" for name, condition in wrong.items())
        query = (
            f"SELECT CASE {named} END, {', '.join(_key_names(table))} FROM {table.name}"
            f" WHERE {' OR '.join(wrong.values())} LIMIT 1"
        )
        with _driver(conn) as driver:
            row = driver.execute(query).fetchone()
        if row is None:
            return None
        key = ", ".join(f"{name}={value!r}" for name, value in zip(_key_names(table), row[1:], strict=True))
        return f"{table.name}.{row[0]} in the row {key}"

    def identity(self, conn: Connection) -> str:
        return str(conn.exec_driver_sql("SELECT file FROM pragma_database_list WHERE name = 'main'").scalar_one())


class PostgresEnd(CopyEnd):
    is_strict = True

    def keep_unchanged(self, conn: Connection) -> None:
        conn.exec_driver_sql(f"LOCK TABLE {', '.join(metadata.tables)} IN SHARE MODE")

    def rows(
        self, conn: Connection, table: Table, *, after: Key | None = None, until: Key | None = None
    ) -> Generator[Row, None, None]:
        dialect_of(conn).walk_by_key(conn)
        keys = [f'{each.name} COLLATE "C"' if isinstance(each.type, Text) else each.name for each in table.primary_key]
        key = ", ".join(keys)
        where = _where(f"({key})", _literals(after), _literals(until))
        query = f"SELECT {_names(table)} FROM {table.name}{where} ORDER BY {key}"
        with _cursor(conn, f"{table.name}_rows", query) as fetch:
            if not has_bodies(table):
                while rows := fetch(PAGE_ROWS):
                    yield from rows
                return
            # As many rows at once as memory allows. Postgres knows the size of a body without reading it.
            sizes = f"SELECT octet_length(body) FROM {table.name}{where} ORDER BY {key}"
            with _cursor(conn, f"{table.name}_sizes", sizes) as fetch_sizes:
                while found := fetch_sizes(PAGE_ROWS):
                    for count in counts_of([size for (size,) in found]):
                        yield from fetch(count)

    def write(self, conn: Connection, table: Table, rows: Sequence[Row]) -> None:
        statement = f"COPY {table.name} ({_names(table)}) FROM STDIN (FORMAT BINARY)"
        with _driver(conn) as driver, driver.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types([COPY_TYPES[type(column.type)] for column in table.columns])
            for row in rows:
                copy.write_row(row)

    def indexes(self, conn: Connection) -> list[IndexText]:
        found = conn.execute(_POSTGRES_INDEXES, {"tables": list(metadata.tables)}).all()
        return [self._index(*row) for row in found]

    @staticmethod
    def _index(table: str, name: str, created: str, kind: str | None) -> IndexText:
        if kind is None:
            return IndexText(name, f"DROP INDEX {name}", created)
        constraint = f"ALTER TABLE {table} ADD CONSTRAINT {name} {kind} USING INDEX {name}"
        return IndexText(name, f"ALTER TABLE {table} DROP CONSTRAINT {name}", f"{created};\n{constraint}")

    def prepare_load(self, conn: Connection) -> None:
        conn.exec_driver_sql("SET maintenance_work_mem = '256MB'")

    def analyze(self, conn: Connection) -> None:
        conn.exec_driver_sql(f"ANALYZE {', '.join(metadata.tables)}")

    def make_durable(self, conn: Connection) -> None:
        conn.exec_driver_sql("SET synchronous_commit = on")

    def finish(self, conn: Connection) -> None:
        """Nothing: a COMMIT is on the disk."""

    def last_id(self, conn: Connection, table: Table) -> int:
        query = f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {self._sequence(conn, table)}"
        return int(conn.exec_driver_sql(query).scalar_one())

    def set_last_id(self, conn: Connection, table: Table, last_id: int) -> None:
        conn.exec_driver_sql(f"SELECT setval('{self._sequence(conn, table)}', {max(last_id, 1)}, {last_id > 0})")

    @staticmethod
    def _sequence(conn: Connection, table: Table) -> str:
        column = table.autoincrement_column
        assert column is not None, "its ids are given by the database"
        query = text("SELECT pg_get_serial_sequence(:name, :column)")
        return str(conn.execute(query, {"name": table.name, "column": column.name}).scalar_one())

    def misfit(self, conn: Connection, table: Table) -> str | None:
        return None

    def identity(self, conn: Connection) -> str:
        return str(conn.exec_driver_sql("SELECT concat(current_database(), pg_postmaster_start_time())").scalar_one())


_ENDS: Final = {"sqlite": SqliteEnd(), "postgresql": PostgresEnd()}


def end_of(conn: Connection) -> CopyEnd:
    """The kind of the database behind a connection."""
    return _ENDS[dialect_of(conn).name]


def _names(table: Table) -> str:
    return ", ".join(column.name for column in table.columns)


def _key_names(table: Table) -> list[str]:
    return [column.name for column in table.primary_key]


def _where(key: str, after: str, until: str) -> str:
    conditions = [f"{key} {sign} {bound}" for sign, bound in ((">", after), ("<=", until)) if bound]
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _literals(key: Key | None) -> str:
    return f"({', '.join(map(sql_literal, key))})" if key else ""


def _misfits(column: Column[Any]) -> str:
    """The condition on SQLite that a value does not fit into its column on Postgres."""
    name = column.name
    if isinstance(column.type, Text):
        return f"({name} IS NOT NULL AND (typeof({name}) <> 'text' OR instr({name}, char(0))))"
    if isinstance(column.type, LargeBinary):
        return f"({name} IS NOT NULL AND typeof({name}) <> 'blob')"
    kind: type[Any] = type(column.type)
    bound = _RANGES[kind]
    outside = "0" if kind is BigInteger else f"{name} NOT BETWEEN {-bound} AND {bound - 1}"
    return f"({name} IS NOT NULL AND (typeof({name}) <> 'integer' OR {outside}))"


@contextmanager
def _driver(conn: Connection) -> Iterator[Any]:
    """The driver's connection; its errors become SQLAlchemy's."""
    driver: Any = conn.connection.driver_connection
    try:
        yield driver
    except driver_errors(conn) as error:
        raise_as_sqlalchemy_does(conn, driver, error)


@contextmanager
def _cursor(conn: Connection, name: str, query: str) -> Iterator[Callable[[int], list[Row]]]:
    """A cursor of Postgres in the current transaction: a function that fetches so many of its next rows."""
    with _driver(conn) as driver, driver.cursor(binary=True) as cursor:
        cursor.execute(f"DECLARE {name} NO SCROLL CURSOR FOR {query}", prepare=False)
        yield lambda count: cursor.execute(f"FETCH {count} FROM {name}", prepare=False).fetchall()
        cursor.execute(f"CLOSE {name}", prepare=False)


_SQLITE_INDEXES = text(
    "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL AND tbl_name IN :tables ORDER BY name"
).bindparams(bindparam("tables", expanding=True))
_SQLITE_LAST_ID = text("SELECT seq FROM sqlite_sequence WHERE name = :name")
_SQLITE_FORGET_ID = text("DELETE FROM sqlite_sequence WHERE name = :name")
_SQLITE_SET_ID = text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :last_id)")
_POSTGRES_INDEXES = text("""
SELECT t.relname, x.relname, pg_get_indexdef(x.oid),
       CASE n.contype WHEN 'p' THEN 'PRIMARY KEY' WHEN 'u' THEN 'UNIQUE' END
FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid JOIN pg_class x ON x.oid = i.indexrelid
LEFT JOIN pg_constraint n ON n.conindid = x.oid AND n.contype IN ('p', 'u')
WHERE t.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema()) AND t.relname = ANY(:tables)
ORDER BY t.relname, x.relname
""")
