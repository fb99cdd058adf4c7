"""Read-only connections to a database of PopMQ."""

from __future__ import annotations

import re
import time
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
# How long a query that has begun waits for a database that fails over: Patroni replaces a silent primary after 30 s.
PATIENCE_S = 60.0
RETRY_S = 0.5
# A connection is lost or refused; the server ends or starts; a standby's replay needs the rows.
_LOST = re.compile("08...|57P0.|40001")
# What a session is set to, whatever the database and the role have. ADBC's connection has the same.
SETTINGS = (
    "default_transaction_read_only=on",
    "default_transaction_isolation=read\\ committed",
    "row_security=off",  # a policy would hide rows silently; so a hidden row is an error
    "client_encoding=UTF8",
    "standard_conforming_strings=on",
    "bytea_output=hex",
    "DateStyle=ISO",
    "TimeZone=UTC",
    "extra_float_digits=1",
    "quote_all_identifiers=off",  # ADBC would know no types, and give bytes
    "statement_timeout=0",
    "idle_in_transaction_session_timeout=0",
    "plan_cache_mode=auto",
    "enable_indexscan=on",
    "enable_seqscan=on",
    "enable_sort=on",
    # A page has 8,192 rows at most. To hash or merge, Postgres would read all messages for each page.
    "enable_nestloop=on",
    "enable_hashjoin=off",
    "enable_mergejoin=off",
    # Spark reads in parallel already, and a page is too short for the JIT compiler to pay.
    "max_parallel_workers_per_gather=0",
    "jit=off",
    "work_mem=32MB",  # a page of bodies stays in memory while it is measured
    "application_name=popmq-spark",
)
_NO_SUCH = {"42P01", "42703"}  # SQLSTATEs: a view, a column
_OLD_SCHEMA = re.compile("dead_letter|lineage|consumer_group|column")


class DatabaseGone(ValueError):
    """Postgres cannot be reached, or the connection is lost; another try may help."""


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
        own = error.orig if isinstance(error, DBAPIError) else error
        message, state = str(own).strip().splitlines()[0], getattr(own, "sqlstate", None)
        is_old = state in _NO_SUCH if state else _OLD_SCHEMA.search(message)  # of SQLite and ADBC there are only words
        way_out = "; make its schema with: popmq db upgrade" if is_old else ""
        kind = DatabaseGone if _may_come_back(engine, own) else ValueError
        raise kind(f"option url={_shown(where)} cannot be read: {message}{way_out}") from error


def _may_come_back(engine: Engine, own: BaseException | None) -> bool:
    """Whether the connection failed, not the statement.

    An error of connecting has no SQLSTATE: no server answered, or one refused. A server that starts refuses too.
    """
    kinds: tuple[type[Exception], ...] = (engine.dialect.loaded_dbapi.OperationalError, *adbc_errors())
    if engine.dialect.name != "postgresql" or not isinstance(own, kinds):
        return False
    state: str | None = getattr(own, "sqlstate", None)
    return not state or _LOST.fullmatch(state) is not None


Answer = TypeVar("Answer")


class Patience:
    """For reads that a failover interrupts: the time begins at the first failure after a success.

    first_s: seconds to wait as long as there was no success.
    """

    def __init__(self, first_s: float = 0.0) -> None:
        self._limit_s = first_s
        self._until: float | None = None

    def succeeded(self) -> None:
        self._limit_s = PATIENCE_S
        self._until = None

    def wait(self) -> bool:
        """Wait a moment before the next try. False: the time is over."""
        if self._until is None:
            self._until = time.monotonic() + self._limit_s
        if time.monotonic() >= self._until:
            return False
        time.sleep(RETRY_S)
        return True


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
    given = url.query.get("options", "")
    options = " ".join((given if isinstance(given, str) else " ".join(given), *(f"-c {each}" for each in SETTINGS)))
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


class KeptConnection:
    """A connection that is kept between the queries of an idle stream, because opening one costs more than a query.

    Opened by the first `ask`, and kept until `close`. Unpickled, it is closed.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._kept: tuple[Connection, ExitStack] | None = None
        self._patience = Patience()

    def __reduce__(self) -> tuple[type[KeptConnection], tuple[str]]:
        return KeptConnection, (self._url,)

    def ask(self, question: Callable[[Connection], Answer]) -> Answer:
        """Asks again over a new connection if the kept one is lost, and waits for a database that has answered before.
        Raises as `connected` does."""
        if self._kept is not None:
            with suppress(DatabaseGone):
                return self._ask(question)
        while True:
            try:
                answer = self._ask(question)
            except DatabaseGone:
                if not self._patience.wait():
                    raise
            else:
                self._patience.succeeded()
                return answer

    def _ask(self, question: Callable[[Connection], Answer]) -> Answer:
        """Over the kept connection, or else over a new one. After a failure none is kept."""
        kept, self._kept = self._kept, None
        with kept[1] if kept else ExitStack() as stack:
            conn = kept[0] if kept else stack.enter_context(connected(self._url))
            answer = question(conn)
            self._kept = conn, stack.pop_all()
        return answer

    def close(self) -> None:
        if self._kept is not None:
            kept, self._kept = self._kept, None
            kept[1].close()
