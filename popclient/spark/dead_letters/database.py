"""Read-only connections to a database of PopMQ."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from popclient.spark.dead_letters.adbc import errors as adbc_errors
from popclient.spark.options import shown

BUSY_TIMEOUT_S = 30
CONNECT_TIMEOUT_S = 10
_OLD_SCHEMA = re.compile("dead_letters|lineage|column")


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """Connects to a database whose URL `options.parse` has checked; raises `ValueError` if it cannot be read.

    Each statement is a transaction, also with the driver's cursors.
    """
    where = make_url(url)
    engine = _sqlite(where) if where.get_backend_name() == "sqlite" else _postgres(where)
    try:
        with engine.connect() as conn:
            yield conn
    except _reasons(engine) as error:
        said = str(error.orig if isinstance(error, DBAPIError) else error).strip().splitlines()[0]
        way_out = "; make its schema with: popmq db upgrade" if _OLD_SCHEMA.search(said) else ""
        raise ValueError(f"option url={_shown(where)} cannot be read: {said}{way_out}") from error


def _reasons(engine: Engine) -> tuple[type[Exception], ...]:
    return (DBAPIError, engine.dialect.loaded_dbapi.Error, *adbc_errors())


def _sqlite(url: URL) -> Engine:
    path = Path(url.database or "")
    if not path.is_file():
        raise ValueError(f"option url={_shown(url)} cannot be read: there is no file {path}")
    return create_engine(
        URL.create("sqlite", database=f"file:{quote(str(path))}", query={"mode": "ro", "uri": "true"}),
        paramstyle="named",
        isolation_level="AUTOCOMMIT",
        poolclass=NullPool,
        connect_args={"timeout": BUSY_TIMEOUT_S},
    )


def _postgres(url: URL) -> Engine:
    # Spark reads in parallel already, and a page is too short for the JIT compiler to pay.
    settings = ("default_transaction_read_only=on", "max_parallel_workers_per_gather=0", "jit=off")
    options = " ".join(f"-c {each}" for each in (*settings, "application_name=popmq-spark"))
    try:
        return create_engine(
            url,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            connect_args={"connect_timeout": CONNECT_TIMEOUT_S, "options": options},
        )
    except ModuleNotFoundError:
        raise ValueError(
            f"option url={_shown(url)} needs the driver of Postgres: pip install 'popmq[postgres]'"
        ) from None


def _shown(url: URL) -> str:
    return shown(url.render_as_string(hide_password=False))


Answer = TypeVar("Answer")


class KeptConnection:
    """A connection that is kept between the looks of an idle stream, because opening one costs more than a look.

    Opened by the first `ask`, and kept until `close`. Unpickled, it is closed.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._kept: tuple[Connection, ExitStack] | None = None

    def __reduce__(self) -> tuple[type[KeptConnection], tuple[str]]:
        return KeptConnection, (self._url,)

    def ask(self, question: Callable[[Connection], Answer]) -> Answer:
        """Asks again over a new connection if the kept one is lost, as after a restart of the database. Raises as
        `connected` does."""
        if self._kept is not None:
            with suppress(DBAPIError):
                return question(self._kept[0])
            self.close()
        with ExitStack() as stack:
            conn = stack.enter_context(connected(self._url))
            answer = question(conn)
            self._kept = conn, stack.pop_all()
        return answer

    def close(self) -> None:
        if self._kept is not None:
            kept, self._kept = self._kept, None
            kept[1].close()
