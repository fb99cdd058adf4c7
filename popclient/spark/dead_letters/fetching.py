"""Pages of a view as Arrow arrays. A page is one short statement, which ends before Spark sees the page.

Rows are fetched by the database's own driver, without a Python object around each. Postgres is asked for a page's
columns instead of its rows: each as one value, which becomes an Arrow array as it is. That costs less; with bodies of
a KiB and more ADBC, where it is installed, costs less still.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Final, Protocol

import pyarrow as pa
from sqlalchemy import Connection, bindparam

from popclient.spark.dead_letters.adbc import Copies, connected_beside
from popclient.spark.dead_letters.adbc import errors as adbc_errors
from popclient.spark.dead_letters.aggregated import aggregates, arrays_of
from popclient.spark.dead_letters.choosing import Statement, chosen, key_of, up_to
from popclient.spark.dead_letters.columns import BODY, VIEWS, Page, ViewSource
from popclient.spark.dead_letters.options import ADBC, AUTO, DeadLetterOptions, has_adbc

log = logging.getLogger(__name__)

PAGE_ROWS_MAX: Final = 8_192
PAGE_BYTES_MAX: Final = 16 * 1024 * 1024  # the body that passes it is the page's last


class PageFetcher(Protocol):
    """One driver's way to a page."""

    def page(self, first: int, last: int) -> Page | None:
        """The rows with first <= key <= last, as far as a page goes; None where there are none."""


def pages(
    conn: Connection, options: DeadLetterOptions, sources: Sequence[ViewSource], first: int, last: int
) -> Iterator[Page]:
    """The rows with first <= key <= last, in the order of the key, which is the first of `sources`."""
    unique = VIEWS[options.view].unique
    with _fetcher(conn, options, sources, is_long=last - first >= PAGE_ROWS_MAX) as fetcher:
        while (page := fetcher.page(first, last)) is not None:
            keys = page[sources[0]]
            whole = len(keys) if unique or len(keys) < PAGE_ROWS_MAX else _before_last_key(keys)
            yield {source: array.slice(0, whole) for source, array in page.items()}
            first = keys[whole - 1].as_py() + 1


def _before_last_key(keys: pa.Array) -> int:
    """How many rows stand before the last key's; all, where it is the only one."""
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
            beside = stack.enter_context(connected_beside(own))
        # Without bodies columns as values cost less; and for a page or less a second connection costs too much.
        elif options.driver == AUTO and is_long and BODY in sources and has_adbc():
            beside = _connected_if_possible(stack, own)
        else:
            beside = None
        if beside is None:
            yield Columns(conn, Statement.of(conn, aggregates(query, sources)), sources, rows)
        else:
            yield Copies(beside, own, Statement.of(conn, query), sources)


def _connected_if_possible(stack: ExitStack, own: Any) -> Any:
    """Nobody has asked for it: a read must not fail for want of it."""
    try:
        return stack.enter_context(connected_beside(own))
    except Exception as error:
        if not isinstance(error, (ValueError, *adbc_errors())):
            raise
        log.warning("dead letters are read without ADBC: %s", error)
        return None


class PageRows:
    """Fetches rows, one by one where they have bodies, up to a page's bytes."""

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
    """Fetches one row of whole columns; a page that cannot be told so is fetched by rows."""

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
        return self._rows.page(first, self._last_told(count, values)) if arrays is None else arrays

    def _last_told(self, count: int, values: Sequence[Any]) -> int:
        """The page's last key: the driver holds all that it is asked for, so it is asked for a page's bytes alone."""
        keys = self._sources[:1]
        told = arrays_of(count, values, keys)
        assert told is not None, "only texts can be told in a way that is not taken"
        last: int = told[keys[0]][-1].as_py()
        return last


@contextmanager
def _executed(conn: Connection, statement: Statement, first: int, last: int) -> Iterator[Any]:
    """The driver's own cursor. Postgres speaks binary with it: a body would come as text twice as long."""
    own: Any = conn.connection.driver_connection
    with closing(own.cursor() if conn.dialect.name == "sqlite" else own.cursor(binary=True)) as cursor:
        cursor.execute(statement.sql, {**statement.parameters, "first": first, "last": last})
        yield cursor
