"""Fetches pages of a view as Arrow arrays. A page is one short statement, which ends before Spark gets the page.

The database's own driver fetches rows, without an object of SQLAlchemy for each. From Postgres a page is fetched as
columns: each is one value, which becomes an Arrow array. That is faster than rows; for bodies of a KiB or more ADBC is
faster still.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Final, Protocol

import pyarrow as pa
from sqlalchemy import Connection, bindparam

from popclient.spark.dead_letters.adbc import Copies, second_connection
from popclient.spark.dead_letters.adbc import errors as adbc_errors
from popclient.spark.dead_letters.aggregated import aggregates, arrays_of
from popclient.spark.dead_letters.columns import BODY, VIEWS, Page, ViewSource
from popclient.spark.dead_letters.options import ADBC, AUTO, DeadLetterOptions, has_adbc
from popclient.spark.dead_letters.queries import Statement, chosen, key_of, up_to

log = logging.getLogger(__name__)

PAGE_ROWS_MAX: Final = 8_192
PAGE_BYTES_MAX: Final = 16 * 1024 * 1024  # the body that exceeds it is the page's last


class PageFetcher(Protocol):
    """One driver's way to a page."""

    def page(self, first: int, last: int) -> Page | None:
        """The first page of the rows with first <= key <= last; None if there are no rows."""


def pages(
    conn: Connection, options: DeadLetterOptions, sources: Sequence[ViewSource], first: int, last: int
) -> Iterator[Page]:
    """The rows with first <= key <= last, in the order of the key. The first of `sources` is the key."""
    unique = VIEWS[options.view].unique
    with _fetcher(conn, options, sources, is_long=last - first >= PAGE_ROWS_MAX) as fetcher:
        while (page := fetcher.page(first, last)) is not None:
            keys = page[sources[0]]
            whole = len(keys) if unique or len(keys) < PAGE_ROWS_MAX else _before_last_key(keys)
            yield {source: array.slice(0, whole) for source, array in page.items()}
            first = keys[whole - 1].as_py() + 1


def _before_last_key(keys: pa.Array) -> int:
    """The number of rows before those of the last key; all rows if there is only one key."""
    listed = keys.to_pylist()
    return listed.index(listed[-1]) or len(listed)


@contextmanager
def _fetcher(
    conn: Connection, options: DeadLetterOptions, sources: Sequence[ViewSource], *, is_long: bool
) -> Iterator[PageFetcher]:
    key = key_of(options)
    query = chosen(options, sources).where(key >= bindparam("first"), key <= bindparam("last"))
    query = query.order_by(key).limit(PAGE_ROWS_MAX)
    rows = PageRows(conn, Statement.of(conn, query), sources)
    if conn.dialect.name == "sqlite":
        yield rows
        return
    query = up_to(query, sources, PAGE_BYTES_MAX)
    own: Any = conn.connection.driver_connection
    with ExitStack() as stack:
        if options.driver == ADBC:
            second = stack.enter_context(second_connection(own))
        # Without bodies, aggregated columns are faster; for one page a second connection costs too much.
        elif options.driver == AUTO and is_long and BODY in sources and has_adbc():
            second = _connected_if_possible(stack, own)
        else:
            second = None
        if second is None:
            yield Columns(conn, Statement.of(conn, aggregates(query, sources)), sources, rows)
        else:
            yield Copies(second, own, Statement.of(conn, query), sources)


def _connected_if_possible(stack: ExitStack, own: Any) -> Any:
    """The user has not chosen ADBC, so a read does not fail without it."""
    try:
        return stack.enter_context(second_connection(own))
    except Exception as error:
        if not isinstance(error, (ValueError, *adbc_errors())):
            raise
        log.warning("dead letters are read without ADBC: %s", error)
        return None


class PageRows:
    """Fetches rows; with bodies one by one, up to PAGE_BYTES_MAX."""

    def __init__(self, conn: Connection, statement: Statement, sources: Sequence[ViewSource]) -> None:
        self._conn = conn
        self._statement = statement
        self._sources = sources
        self._body = sources.index(BODY) if BODY in sources else None

    def page(self, first: int, last: int) -> Page | None:
        with _executed(self._conn, self._statement, first, last) as cursor:
            rows = cursor.fetchall() if self._body is None else _up_to_a_page(cursor, self._body)
        if not rows:
            return None
        columns = zip(*rows, strict=True)
        return {source: pa.array(column, source.kind) for source, column in zip(self._sources, columns, strict=True)}


def _up_to_a_page(cursor: Any, body: int) -> list[Any]:
    rows: list[Any] = []
    size = 0
    while size < PAGE_BYTES_MAX and (row := cursor.fetchone()) is not None:
        rows.append(row)
        size += len(row[body])
    return rows


class Columns:
    """Fetches a page as one row of aggregated columns, or by rows if a text does not allow that."""

    def __init__(self, conn: Connection, statement: Statement, sources: Sequence[ViewSource], rows: PageRows) -> None:
        self._conn = conn
        self._statement = statement
        self._sources = sources
        self._rows = rows

    def page(self, first: int, last: int) -> Page | None:
        with _executed(self._conn, self._statement, first, last) as cursor:
            [(count, *values)] = cursor.fetchall()
        if not count:
            return None
        arrays = arrays_of(count, values, self._sources)
        return self._rows.page(first, self._last_key(count, values)) if arrays is None else arrays

    def _last_key(self, count: int, values: Sequence[Any]) -> int:
        """The page's last key. By rows, the driver keeps the whole result in memory, so it must not ask for more."""
        keys = self._sources[:1]
        key_array = arrays_of(count, values, keys)
        assert key_array is not None, "keys are numbers"
        last: int = key_array[keys[0]][-1].as_py()
        return last


@contextmanager
def _executed(conn: Connection, statement: Statement, first: int, last: int) -> Iterator[Any]:
    """A cursor of the driver. For Postgres in binary: as text, a body would be twice as long."""
    own: Any = conn.connection.driver_connection
    with closing(own.cursor() if conn.dialect.name == "sqlite" else own.cursor(binary=True)) as cursor:
        cursor.execute(statement.sql, {**statement.parameters, "first": first, "last": last})
        yield cursor
