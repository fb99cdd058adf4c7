"""Pages by ADBC, an optional accelerator for Postgres: `pip install 'popmq[adbc]'`.

Its driver makes Arrow arrays directly from Postgres' COPY format. Not for SQLite: the driver has its own copy of
SQLite, and if two copies in one process open a file, closing one drops the locks of the other.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from popclient.spark.dead_letters.columns import Page, ViewSource
from popclient.spark.dead_letters.options import GET_ADBC
from popclient.spark.dead_letters.queries import Statement

if TYPE_CHECKING:
    from adbc_driver_postgresql.dbapi import Connection

_CHOOSING: Final = ("host", "hostaddr", "port", "target_session_attrs", "load_balance_hosts")


def errors() -> tuple[type[Exception], ...]:
    """The errors of its statements; none if ADBC was not used."""
    manager = sys.modules.get("adbc_driver_manager")
    error: type[Exception] | None = getattr(manager, "Error", None)
    return () if error is None else (error,)


@contextmanager
def second_connection(own: Any) -> Iterator[Connection]:
    """A second connection to the server of psycopg's connection, with its settings.

    Raises `ValueError` if the driver is not installed, and one of `errors` if it cannot connect.
    """
    try:
        from adbc_driver_postgresql import dbapi
    except ImportError as error:
        raise ValueError(f"option driver='adbc' is not installed for Spark's workers ({error}): {GET_ADBC}") from None
    with dbapi.connect(_conninfo(own.info), autocommit=True) as conn:
        yield conn


def _conninfo(own: Any) -> str:
    """ADBC's own libpq has other defaults, and could choose another one of several servers."""
    from psycopg.conninfo import make_conninfo

    given = {name: value for name, value in own.get_parameters().items() if name not in _CHOOSING}
    server = {"host": own.host, "hostaddr": own.hostaddr, "port": own.port, "user": own.user, "dbname": own.dbname}
    asked = {name: value for name, value in {**server, "password": own.password}.items() if value}
    return make_conninfo(**{**given, **asked})


class Copies:
    """Fetches a page with Postgres' COPY."""

    def __init__(self, conn: Connection, own: Any, statement: Statement, sources: Sequence[ViewSource]) -> None:
        self._conn = conn
        self._own = own
        self._statement = statement
        self._sources = sources

    def page(self, first: int, last: int) -> Page | None:
        with self._conn.cursor() as cursor:
            cursor.execute(self._with_parameters(first, last))
            table: pa.Table = cursor.fetch_arrow_table()
        if not table.num_rows:
            return None
        columns = zip(self._sources, table.columns, strict=True)
        return {source: _one(column).cast(source.kind) for source, column in columns}

    def _with_parameters(self, first: int, last: int) -> str:
        """In the text: Postgres copies out no statement that has any beside it."""
        from psycopg import ClientCursor

        given = {**self._statement.parameters, "first": first, "last": last}
        return ClientCursor(self._own).mogrify(self._statement.sql, given)


def _one(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)
