"""Opens the database, and turns errors of its driver into `PopError`s with plain sentences.

SQLite: a file has one writing connection (WAL and synchronous=FULL, which are verified) and readers that cannot write.
A second server on the same file is refused. Postgres: any number of servers use one database. Connections are in
autocommit mode, and the writer begins and ends its transactions itself.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool, QueuePool, StaticPool

from popserver.database.newest import BEGIN_LOOKING_UP, BEGIN_READING
from popserver.database.notifications import CHANNEL
from popserver.database.statement import execute_text
from popserver.model.errors import CommitUnknown, Internal, PopError, StoreFull, StoreUnavailable
from popserver.postgres.commits import BARRIER, CommitWarnings
from popserver.postgres.connections import PrimaryConnections
from popserver.postgres.refusals import refusal
from popserver.postgres.urls import check_options, check_target, readable, shown, with_lists
from popserver.sqlite.files import check_one_name, lock, make
from popserver.sqlite.library import check_library, sqlite_module
from popserver.sqlite.sessions import prepare_memory, prepare_reader, prepare_writer

READERS_MAX = 3
PLANNED_ANEW_S = 60  # A connection keeps its plans, which Postgres made when tables were smaller.
IN_BINARY = "popmq_in_binary"  # execution option: Postgres sends the result in its binary format
# A deadlock, which is possible only with a user's own transaction; a serialization failure.
_SERIALIZATION_FAILURES = {"40P01", "40001"}
_NO_STATES = object()  # SQLite has none
_PASSWORD = re.compile(r":.*@", re.DOTALL)  # everything between the first colon and the host
_POSTGRES = re.compile(r"(jdbc:)?(postgres|pgsql|psql|pg$)", re.IGNORECASE)  # names of it that other programs use
_MEMORY_NUMBER = itertools.count()


class Database:
    """One writing connection and a few reading connections to a database."""

    connections: PrimaryConnections  # only of Postgres

    def __init__(
        self,
        url: str,
        *,
        durability: str = "full",
        must_exist: bool = False,
        own_process: bool = False,
        only_reads: bool = False,
    ) -> None:
        """Connects lazily. Creates a SQLite file, readable only by this user, unless it `must_exist`.

        `own_process`: only the server uses SQLite in this process, so it may use the newer SQLite of `pysqlite3`.
        `only_reads`: a standby of Postgres is enough, if the URL asks for one.
        Raises `StoreUnavailable`.
        """
        self.url = parse_url(url)
        self._must_exist = must_exist
        self.durability = durability
        self._lock_file: int | None = None
        self._warnings = CommitWarnings()
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        if self.is_sqlite:
            self.writing, self.reading = self._open_sqlite(sqlite_module(own_process=own_process))
        else:
            if not only_reads:
                check_target(self.url)
            self.writing, self.reading = self._open_postgres()

    @property
    def is_shared(self) -> bool:
        """Whether several servers can use it at the same time."""
        return not self.is_sqlite

    @property
    def file(self) -> Path | None:
        """The file of a SQLite database; None for Postgres and for an in-memory database."""
        return sqlite_file(self.url)

    @property
    def is_memory(self) -> bool:
        """Whether it is a SQLite database in memory, which has one connection for everything."""
        return self.is_sqlite and _is_memory(self.url)

    @property
    def name(self) -> str:
        """The URL without its password, for logs and errors."""
        return shown(self.url)

    def connect_writer(self) -> Connection:
        """This server's only writing connection. Raises `StoreUnavailable` if the database cannot be reached."""
        with plain_errors(self.name):
            return self.writing.connect()

    @contextmanager
    def read(self, *, by_index: bool = False) -> Iterator[Connection]:
        """A read-only connection that sees one consistent state. `by_index`: for few rows of large tables."""
        begin = "BEGIN" if self.is_sqlite else BEGIN_LOOKING_UP if by_index else BEGIN_READING
        with plain_errors(self.name), self.reading.connect() as conn:
            conn.exec_driver_sql(begin, execution_options={"no_parameters": True})
            try:
                yield conn
            finally:
                # On a broken connection ROLLBACK raises, and would hide the cause.
                if not conn.invalidated:
                    conn.exec_driver_sql("ROLLBACK")

    @property
    def begin_statement(self) -> str:
        """How a writing transaction begins. SQLite locks the file at once: otherwise two readers that become writers
        would block each other. On Postgres each statement sees the rows that were committed before it began, also while
        the statement before it waited for a lock."""
        return "BEGIN IMMEDIATE" if self.is_sqlite else "BEGIN ISOLATION LEVEL READ COMMITTED"

    def begin(self, conn: Connection) -> None:
        conn.exec_driver_sql(self.begin_statement)

    def commit(self, conn: Connection, notification: str = "", *, waits: bool = False) -> None:
        """Commit the transaction. The `notification` is sent to listeners when it is durable.

        `waits`: the transaction may have written nothing, and its commit waits for the synchronous standby even so
        (`postgres.commits`). Raises `CommitUnknown` if Postgres gave up this wait.
        """
        self._warnings.clear()
        first = [BARRIER] if waits and self.durability == "full" else []
        if notification:
            first.append(f"NOTIFY {CHANNEL}, '{notification}'")  # the payload has no quotation marks
        if first:
            # Several statements in one round trip; so they have no parameters.
            conn.exec_driver_sql("; ".join((*first, "COMMIT")), execution_options={"no_parameters": True})
        else:
            execute_text(conn, "COMMIT")
        if (said := self._warnings.take()) is not None:
            raise CommitUnknown(
                f"{self.name} committed with a warning ({said}); after a failover the change could be missing, repeat"
                " the request: messages that are stored already are not stored twice"
            )

    def has_rolled_back(self, conn: Connection) -> bool:
        """Whether the database rolled the transaction back by itself, as SQLite does if the disk is full."""
        return self.is_sqlite and not getattr(conn.connection.dbapi_connection, "in_transaction", True)

    def close(self) -> None:
        self.writing.dispose()
        self.reading.dispose()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def _open_sqlite(self, module: ModuleType) -> tuple[Engine, Engine]:
        shared: dict[str, Any] = {"module": module, "isolation_level": "AUTOCOMMIT", "hide_parameters": True}
        args: dict[str, Any] = {"check_same_thread": False, "cached_statements": 512}
        if self.is_memory:
            where = f"file:popmq-{os.getpid()}-{next(_MEMORY_NUMBER)}?mode=memory&uri=true"
            engine = create_engine(f"sqlite:///{where}", poolclass=StaticPool, connect_args=args, **shared)
            event.listen(engine, "connect", lambda dbapi, _record: prepare_memory(dbapi))
            event.listen(engine, "connect", lambda dbapi, _record: check_library(dbapi, module))
            return engine, engine
        file = self.file
        assert file is not None, "it is not in memory"
        if self._must_exist and not file.exists():
            raise StoreUnavailable(
                f"{file} does not exist; create it with: popmq db upgrade --database-url {self.name}"
            )
        check_one_name(file)
        self._lock_file = lock(file)
        make(file)
        # A private cache, because other code may have switched on the shared one, in which a reader waits for a writer.
        url = URL.create("sqlite", database=f"file:{quote(str(file))}", query={"cache": "private", "uri": "true"})
        shared["connect_args"] = args
        writing = create_engine(url, poolclass=NullPool, **shared)
        reading = create_engine(url, poolclass=QueuePool, pool_size=READERS_MAX, **shared)
        event.listen(writing, "connect", lambda dbapi, _record: prepare_writer(dbapi, self.durability))
        event.listen(writing, "connect", lambda dbapi, _record: check_library(dbapi, module))
        event.listen(reading, "connect", lambda dbapi, _record: prepare_reader(dbapi))
        return writing, reading

    def _open_postgres(self) -> tuple[Engine, Engine]:
        url = self.url.set(drivername="postgresql+psycopg")
        shared: dict[str, Any] = {"isolation_level": "AUTOCOMMIT", "hide_parameters": True}
        shared["creator"] = lambda: self.connections.connect()
        try:
            writing = create_engine(url, poolclass=NullPool, **shared)
        except ModuleNotFoundError:
            raise StoreUnavailable("Postgres needs its driver: pip install 'popmq[postgres]'") from None
        check_options(self.url)
        _, arguments = writing.dialect.create_connect_args(url)
        self.connections = PrimaryConnections(arguments, self.name)
        reading = create_engine(url, pool_size=READERS_MAX, pool_pre_ping=True, pool_recycle=PLANNED_ANEW_S, **shared)
        event.listen(writing, "connect", self._prepare_postgres)
        event.listen(reading, "before_cursor_execute", _choose_format)
        return writing, reading

    def _prepare_postgres(self, dbapi: Any, _record: object) -> None:
        self._warnings.prepare(dbapi, self.durability)


@contextmanager
def plain_errors(name: str) -> Iterator[None]:
    """Turn the driver's errors into `PopError`s with plain sentences."""
    try:
        yield
    except DBAPIError as error:
        raise plain_error(error, name) from error
    except StoreUnavailable as error:  # of a new connection
        error.database = name
        raise


def plain_error(error: DBAPIError, name: str) -> PopError:
    """The `PopError` for a driver's error."""
    found = _in_plain_words(error, name)
    found.database = name
    return found


def _in_plain_words(error: DBAPIError, name: str) -> PopError:
    said = str(error.orig).strip() or type(error.orig).__name__
    state: Any = getattr(error.orig, "sqlstate", _NO_STATES)
    if state is not _NO_STATES:  # of Postgres, whose words may be in any language
        return refusal(name, said, state, is_lost=error.connection_invalidated)
    words = said.partition("\n")[0]
    if "is full" in words or "No space left" in words:
        return StoreFull(f"the disk of {name} is full ({words}); nothing was stored, free some space and repeat")
    if "not a database" in words or "malformed" in words:
        return StoreUnavailable(
            f"{name} is damaged ({words}); restore it from a backup, or move it away to start empty"
        )
    if "locked" in words:
        return StoreUnavailable(f"{name} is locked by another program ({words}); end that program and repeat")
    if "unable to open" in words or "readonly" in words:
        return StoreUnavailable(f"{name} cannot be written ({words}); choose a file in a writable folder")
    if error.connection_invalidated or "connection" in words:
        return StoreUnavailable(f"{name} does not answer ({words}); check that it runs, and repeat")
    return Internal(f"{name} refused a statement ({words}); whether it took effect is unknown, repeat the request")


def is_serialization_failure(error: DBAPIError) -> bool:
    """Whether Postgres rolled the transaction back in favour of another one; run again, it will probably succeed."""
    return getattr(error.orig, "sqlstate", None) in _SERIALIZATION_FAILURES


def commit_error(error: DBAPIError | CommitUnknown, name: str, outcome: Any) -> PopError:
    """The `PopError` for a failed COMMIT. If the connection broke, it is unknown whether the commit took effect.

    `outcome` is the result of the request if it did.
    """
    if isinstance(error, CommitUnknown):
        sentence = error.sentence
    elif error.connection_invalidated:
        sentence = (
            f"the connection to {name} broke during a commit; whether it took effect is unknown, repeat the request:"
            " messages that are stored already are not stored twice"
        )
    else:
        plain = plain_error(error, name)
        if type(plain) is not Internal:
            return plain
        sentence = plain.sentence
    unknown = CommitUnknown(sentence, outcome)
    unknown.database = name
    return unknown


def parse_url(url: str) -> URL:
    """The URL of a database that PopMQ can use. Raises `StoreUnavailable`."""
    try:
        parsed = make_url(readable(url))
    except (ArgumentError, ValueError):
        raise StoreUnavailable(
            f"database URL '{_PASSWORD.sub(':***@', url)}' is malformed; write sqlite:///popmq.db or postgresql://user@host/name"
        ) from None
    kind = parsed.get_backend_name()
    if kind == "postgresql":
        return with_lists(parsed)
    if kind != "sqlite":
        hint = "; write postgresql:// before the same rest" if _POSTGRES.match(kind) else ""
        hint = "; write sqlite:/// and the file" if kind.startswith(("sqlite", "file")) else hint
        raise StoreUnavailable(
            f"database URL '{shown(parsed)}' is for '{kind}'; PopMQ supports sqlite and postgresql{hint}"
        )
    if parsed.host or parsed.username or parsed.port:
        raise StoreUnavailable(
            f"database URL '{shown(parsed)}' names a host, and SQLite has none; write sqlite:/// and the file, with a"
            " fourth / before an absolute path"
        )
    if parsed.query:
        raise StoreUnavailable(
            f"database URL '{shown(parsed)}' has the option '{next(iter(parsed.query))}', and one of SQLite has none;"
            " leave it out"
        )
    return parsed


def sqlite_file(url: URL) -> Path | None:
    """The file of a SQLite database; None for Postgres and for a database in memory."""
    is_file = url.get_backend_name() == "sqlite" and not _is_memory(url)
    return Path(url.database or "").resolve() if is_file else None


def _is_memory(url: URL) -> bool:
    return url.database in {None, "", ":memory:"}


def _choose_format(_conn: Connection, cursor: Any, _statement: str, _values: object, context: Any, _many: bool) -> None:
    if context is not None and context.execution_options.get(IN_BINARY):
        cursor.format = 1
