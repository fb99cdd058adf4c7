"""Inserting whole rows, the fastest way each database has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NoReturn

from sqlalchemy import BigInteger, Column, Connection, Integer, LargeBinary, SmallInteger, Table, Text
from sqlalchemy.exc import DBAPIError

_ROWS_PER_STATEMENT_MAX = 64
_POSTGRES_TYPES = {BigInteger: "int8", Integer: "int4", SmallInteger: "int2", Text: "text", LargeBinary: "bytea"}

Rows = Sequence[tuple[Any, ...]]


def insert_rows(conn: Connection, table: Table, rows: Rows) -> None:
    """Insert rows, each with all columns in the table's order, but for a key that the database draws.

    Raises SQLAlchemy's errors, `IntegrityError` too.
    """
    if conn.dialect.name == "postgresql":
        _copy(conn, table, rows)
    else:
        _insert_values(conn, table, rows)


def _insert_values(conn: Connection, table: Table, rows: Rows) -> None:
    """Few statements of many rows.

    SQLite's driver lets go of the interpreter once per statement, so one per row would make the writer and the event
    loop take turns for every message. Row counts are powers of two: few texts, each prepared once.
    """
    start = 0
    while start < len(rows):
        count = min(_ROWS_PER_STATEMENT_MAX, 1 << (len(rows) - start).bit_length() - 1)
        parameters = tuple(value for row in rows[start : start + count] for value in row)
        conn.exec_driver_sql(_insert_text(table, count), parameters)
        start += count


def _copy(conn: Connection, table: Table, rows: Rows) -> None:
    """One binary COPY: a tenth of the cost of an INSERT with that many rows, and ahead of it from a few rows on."""
    driver: Any = conn.connection.driver_connection
    try:
        with driver.cursor() as cursor, cursor.copy(_copy_text(table)) as copy:
            copy.set_types(_copy_types(table))
            for row in rows:
                copy.write_row(row)
    except _errors(conn) as error:
        _raise_as_sqlalchemy_would(conn, driver, error)


def _raise_as_sqlalchemy_would(conn: Connection, driver: Any, error: Exception) -> NoReturn:
    is_lost = conn.dialect.is_disconnect(error, driver, None)  # type: ignore[arg-type]
    if is_lost:
        conn.invalidate(error)
    raise DBAPIError.instance(
        None,
        None,
        error,
        _errors(conn),
        hide_parameters=True,
        connection_invalidated=is_lost,
        dialect=conn.dialect,
    ) from error


def _errors(conn: Connection) -> type[Exception]:
    errors: type[Exception] = conn.dialect.loaded_dbapi.Error
    return errors


@lru_cache(maxsize=256)
def _insert_text(table: Table, count: int) -> str:
    row = f"({', '.join('?' * len(_columns(table)))})"
    return f"INSERT INTO {table.name} ({_names(table)}) VALUES {', '.join([row] * count)}"  # noqa: S608 - names are ours


@lru_cache(maxsize=16)
def _copy_text(table: Table) -> str:
    return f"COPY {table.name} ({_names(table)}) FROM STDIN (FORMAT BINARY)"


@lru_cache(maxsize=16)
def _copy_types(table: Table) -> list[str]:
    return [_POSTGRES_TYPES[type(column.type)] for column in _columns(table)]


def _names(table: Table) -> str:
    return ", ".join(column.name for column in _columns(table))


def _columns(table: Table) -> list[Column[Any]]:
    return [column for column in table.columns if column is not table.autoincrement_column]
