"""Opens the database, and says in plain words why it cannot.

SQLite: one writing connection per file (WAL, synchronous=FULL, both read back), readers that cannot write; a second
server on the same file is refused. Postgres: any number of servers on one database. Statements run in autocommit mode;
the writer begins and ends its transactions itself (`begin`, `commit`, `rollback`).
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool, QueuePool, StaticPool

from popserver.database.notifications import CHANNEL
from popserver.model.errors import CommitUnknown, Internal, PopError, StoreFull, StoreUnavailable

BUSY_TIMEOUT_MS = 5_000
# A Postgres that vanishes without a word is given up after 10 s without an acknowledgement, or 25 s without a packet.
_POSTGRES_ARGUMENTS = {
    "connect_timeout": 5,
    "options": "-c lock_timeout=5s -c application_name=popmq",
    "tcp_user_timeout": 10_000,  # ms; the others: seconds, seconds, packets
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
READERS_MAX = 3
IN_BINARY = "popmq_in_binary"  # the option of a statement whose results Postgres shall send as bytes, not as text
_TAKEN_BACK = {"40P01", "40001"}  # a circle of locks, which only a user's own transaction can be part of; a conflict
_SECRET_OPTIONS = ("password", "sslpassword")  # which Postgres takes from a URL's query as well
_PASSWORD = re.compile(r":.*@", re.DOTALL)  # and whatever else stands before the host
_MEMORY_NUMBER = itertools.count()


class Database:
    """A way to one writing connection and a few reading ones."""

    def __init__(
        self, url: str, *, durability: str = "full", must_exist: bool = False, own_process: bool = False
    ) -> None:
        """Connected lazily; a SQLite file is made, for this user alone, unless it `must_exist`.

        `own_process`: no code but the server's opens files here, so that it may take the newer SQLite of `pysqlite3`.
        """
        self.url = _parse(url)
        self._must_exist = must_exist
        self.durability = durability
        self._lock_file: int | None = None
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        if self.is_sqlite:
            self.writing, self.reading = self._open_sqlite(sqlite_module(own_process=own_process))
        else:
            self.writing, self.reading = self._open_postgres()

    @property
    def is_shared(self) -> bool:
        """Whether several servers can use it at once."""
        return not self.is_sqlite

    @property
    def file(self) -> Path | None:
        """The file of a SQLite database; None for Postgres, and for a database in memory."""
        return None if not self.is_sqlite or self.is_memory else Path(self.url.database or "").resolve()

    @property
    def is_memory(self) -> bool:
        """A SQLite database in memory: one connection for everything."""
        return self.is_sqlite and _is_memory(self.url)

    @property
    def name(self) -> str:
        """The URL without its password, for people to read."""
        return _shown(self.url)

    def connect_writer(self) -> Connection:
        """The one connection of this server that writes; raises `StoreUnavailable` where there is none to be had."""
        with said_plainly(self.name):
            return self.writing.connect()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection that sees one consistent moment and can write nothing."""
        with said_plainly(self.name), self.reading.connect() as conn:
            conn.exec_driver_sql("BEGIN" if self.is_sqlite else "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                yield conn
            finally:
                # On a broken connection it would raise, and hide what broke it.
                if not conn.invalidated:
                    conn.exec_driver_sql("ROLLBACK")

    def begin(self, conn: Connection) -> None:
        # SQLite: take the write lock at once, or two connections could each wait for the other's.
        conn.exec_driver_sql("BEGIN IMMEDIATE" if self.is_sqlite else "BEGIN")

    def commit(self, conn: Connection, notification: str = "") -> None:
        """End the transaction; the `notification` is told to who listens as soon as it is durable
        (`database.notifications`)."""
        if not notification:
            conn.exec_driver_sql("COMMIT")
            return
        # In one trip, which takes no parameters: the payload holds no character that would end the text.
        told = f"NOTIFY {CHANNEL}, '{notification}'; COMMIT"
        conn.exec_driver_sql(told, execution_options={"no_parameters": True})

    def has_rolled_back(self, conn: Connection) -> bool:
        """Whether the database ended the transaction by itself, as SQLite does when the disk is full."""
        return self.is_sqlite and not getattr(conn.connection.dbapi_connection, "in_transaction", True)

    def driver_arguments(self) -> dict[str, Any]:
        """What psycopg needs to connect to this Postgres, for a connection beside the engines'."""
        _, arguments = self.writing.dialect.create_connect_args(self.writing.url)
        return {**arguments, **_POSTGRES_ARGUMENTS}

    def close(self) -> None:
        self.writing.dispose()
        self.reading.dispose()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def _open_sqlite(self, module: ModuleType) -> tuple[Engine, Engine]:
        if _is_memory(self.url):
            engine = create_engine(
                f"sqlite:///file:popmq-{os.getpid()}-{next(_MEMORY_NUMBER)}?mode=memory&uri=true",
                module=module,
                poolclass=StaticPool,
                isolation_level="AUTOCOMMIT",
                hide_parameters=True,
                connect_args={"check_same_thread": False},
            )
            event.listen(engine, "connect", self._prepare_memory)
            return engine, engine
        file = self.file
        assert file is not None, "it is not in memory"
        if self._must_exist and not file.exists():
            raise StoreUnavailable(f"{file} does not exist; make it with: popmq db upgrade --database-url {self.name}")
        _check_one_name(file)
        self._lock_file = _lock(file)
        _make(file)
        shared: dict[str, Any] = {"module": module, "isolation_level": "AUTOCOMMIT", "hide_parameters": True}
        args = {"check_same_thread": False, "timeout": BUSY_TIMEOUT_MS / 1_000, "cached_statements": 512}
        writing = create_engine(self.url, poolclass=NullPool, connect_args=args, **shared)
        reading = create_engine(self.url, poolclass=QueuePool, pool_size=READERS_MAX, connect_args=args, **shared)
        event.listen(writing, "connect", self._prepare_writer)
        event.listen(reading, "connect", _prepare_reader)
        return writing, reading

    def _open_postgres(self) -> tuple[Engine, Engine]:
        url = self.url.set(drivername="postgresql+psycopg")
        shared: dict[str, Any] = {"isolation_level": "AUTOCOMMIT", "hide_parameters": True}
        shared["connect_args"] = _POSTGRES_ARGUMENTS
        try:
            writing = create_engine(url, poolclass=NullPool, **shared)
        except ModuleNotFoundError:
            raise StoreUnavailable("Postgres needs its driver: pip install 'popmq[postgres]'") from None
        reading = create_engine(url, pool_size=READERS_MAX, pool_pre_ping=True, **shared)
        event.listen(writing, "connect", self._prepare_postgres)
        event.listen(reading, "before_cursor_execute", _choose_format)
        return writing, reading

    def _prepare_writer(self, dbapi: Any, _record: object) -> None:
        synchronous = {"full": ("FULL", 2), "relaxed": ("NORMAL", 1)}[self.durability]
        _pragma(dbapi, "journal_mode", "WAL", "wal")
        _pragma(dbapi, "synchronous", *synchronous)
        dbapi.execute("PRAGMA wal_autocheckpoint = 4000")  # 16 MiB: fewer checkpoints, each a few fsyncs
        dbapi.execute("PRAGMA cache_size = -65536")
        dbapi.execute("PRAGMA temp_store = MEMORY")

    def _prepare_memory(self, dbapi: Any, _record: object) -> None:
        dbapi.execute("PRAGMA temp_store = MEMORY")

    def _prepare_postgres(self, dbapi: Any, _record: object) -> None:
        commit = {"full": "on", "relaxed": "off"}[self.durability]
        dbapi.execute(f"SET synchronous_commit = {commit}")


def sqlite_module(*, own_process: bool) -> ModuleType:
    """Python's SQLite; in the server's own process the newer one of `pysqlite3`, where it is installed.

    SQLite 3.7.0 to 3.51.2 can corrupt a WAL under two writers, so the newer one is better. But two libraries of SQLite
    that open one file in one process do not see each other's locks: the second one shortens the file of shared memory
    under the first, and the process dies of SIGBUS. In a user's process (`embedded`) other code opens files by
    Python's library, so the broker has to take the same one.
    """
    if own_process:
        try:
            from pysqlite3 import dbapi2
        except ImportError:
            return _quick_to_bind(sqlite3)
        return _quick_to_bind(dbapi2)
    return _quick_to_bind(sqlite3)


def _quick_to_bind(module: ModuleType) -> ModuleType:
    """The driver looks for an adapter of every blob and NULL it binds, at length where it finds none: a third of an
    append. These two leave the value as it is."""
    module.register_adapter(bytes, _as_it_is)
    module.register_adapter(type(None), _as_it_is)
    return module


def _as_it_is(value: Any) -> Any:
    return value


@contextmanager
def said_plainly(name: str) -> Iterator[None]:
    """Turn a driver's error into a `PopError` whose sentence a user can act on."""
    try:
        yield
    except DBAPIError as error:
        raise plain_error(error, name) from error


def plain_error(error: DBAPIError, name: str) -> PopError:
    """The `PopError` that says what a driver's error means."""
    words = str(error.orig).strip().splitlines()[0] if error.orig and str(error.orig).strip() else type(error).__name__
    if "is full" in words or "No space left" in words:
        return StoreFull(f"the disk of {name} is full ({words}); nothing was stored, free some space and repeat")
    if "not a database" in words or "malformed" in words:
        return StoreUnavailable(f"{name} is damaged ({words}); restore it from a backup, or move it away to start anew")
    if "locked" in words:
        return StoreUnavailable(f"{name} is locked by another program ({words}); end that program and repeat")
    if "unable to open" in words or "readonly" in words:
        return StoreUnavailable(f"{name} cannot be written ({words}); name a file in a folder you may write to")
    if error.connection_invalidated or "connection" in words:
        return StoreUnavailable(f"{name} does not answer ({words}); see that it runs, and repeat")
    return Internal(f"{name} refused a statement ({words}); whether it took effect is unknown, repeat the request")


def is_taken_back(error: DBAPIError) -> bool:
    """Whether Postgres ended the transaction for the sake of another: run again, it may well succeed."""
    return getattr(error.orig, "sqlstate", None) in _TAKEN_BACK


def commit_error(error: DBAPIError, name: str, outcome: Any) -> PopError:
    """The same for a COMMIT, with what the request came to: when the connection broke, nobody knows on which side."""
    if not error.connection_invalidated:
        plain = plain_error(error, name)
        return CommitUnknown(plain.sentence, outcome) if type(plain) is Internal else plain
    return CommitUnknown(
        f"the connection to {name} broke during a commit; whether it took effect is unknown, repeat the request:"
        " what is stored already is not stored twice",
        outcome,
    )


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StoreUnavailable(
            f"database URL '{_PASSWORD.sub(':***@', url)}' is malformed; write sqlite:///popmq.db or postgresql://user@host/name"
        ) from None
    if parsed.get_backend_name() not in {"sqlite", "postgresql"}:
        raise StoreUnavailable(
            f"database URL '{_shown(parsed)}' names '{parsed.get_backend_name()}';"
            " PopMQ keeps its state in sqlite or postgresql"
        )
    return parsed


def _shown(url: URL) -> str:
    return url.difference_update_query(_SECRET_OPTIONS).render_as_string(hide_password=True)


def _is_memory(url: URL) -> bool:
    return url.database in {None, "", ":memory:"}


def _check_one_name(database: Path) -> None:
    """Raise `StoreUnavailable` for a file with hard links: the lock and the WAL go by the name, so a server at each of
    its names would write it at once."""
    try:
        names = database.stat().st_nlink
    except OSError:
        return  # it is made, or named by what opens it
    if names > 1 and database.is_file():
        raise StoreUnavailable(
            f"{database} has {names} names (hard links), and servers at two of them would destroy it; remove the other"
            f" ones, which 'find FOLDER -samefile {database}' lists, or copy the file"
        )


def _lock(database: Path) -> int:
    """Hold `<database>.lock` while this process lives: two servers must never write one file, whatever they call it."""
    path = database.with_name(database.name + ".lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnavailable(
            f"{database} cannot be opened ({error.strerror}); name a folder you may write to"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise StoreUnavailable(
            f"{database} is in use by another popmq server; stop that one, or give this one a file of its own"
        ) from None
    return descriptor


def _make(file: Path) -> None:
    """An empty file for this user alone, unless it is there: SQLite would leave it to the umask who may read what is
    kept, and gives its `-wal` and `-shm` the mode it finds here."""
    # What is in the way of it, SQLite names when it opens the file.
    with suppress(OSError):
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _choose_format(_conn: Connection, cursor: Any, _statement: str, _values: object, context: Any, _many: bool) -> None:
    if context is not None and context.execution_options.get(IN_BINARY):
        cursor.format = 1


def _prepare_reader(dbapi: Any, _record: object) -> None:
    dbapi.execute("PRAGMA query_only = ON")


def _pragma(dbapi: Any, name: str, value: str, expected: object) -> None:
    """Set a pragma and read it back: SQLite ignores silently what it will not do."""
    dbapi.execute(f"PRAGMA {name} = {value}")
    (actual,) = dbapi.execute(f"PRAGMA {name}").fetchone()
    if actual != expected:
        raise StoreUnavailable(f"SQLite keeps {name}={actual} instead of {value}; use a local disk with file locks")
