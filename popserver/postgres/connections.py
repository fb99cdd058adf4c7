"""Connections to the primary of a Postgres that may have several hosts and may fail over.

A new connection goes to the first host that accepts writes, and begins with the host of the last connection. It asks
each host whether it accepts writes; libpq would accept the answer of a pooler, which reports the state of the host at
the pooler's first connection. Then it asks for two numbers:

- The system identifier, which all servers of one Postgres cluster share. Hosts with different ones are refused.
- The timeline, which grows with each failover. A connection with a newer timeline cuts all connections with older ones.
  A host with an older timeline is a former primary that has not noticed the failover, and is not used.

A frozen host keeps its connections open and sends nothing. Its operating system confirms the packets that it gets, so
no timeout of TCP ends them. `newer_primary` finds the new primary beside such a host.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from popserver.model.errors import StoreUnavailable
from popserver.postgres.sessions import BEGIN, SessionFacts
from popserver.postgres.urls import TARGET, WRITABLE, Host, hosts_of

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection, Error

    AnyConnection = Connection[Any] | AsyncConnection[Any]

# If a host disappears, its connection is given up after 10 s without an acknowledgement, or 25 s without a packet.
DEFAULTS: Mapping[str, Any] = {
    "connect_timeout": 5,
    "application_name": "popmq",
    "tcp_user_timeout": 10_000,  # ms; the next three are seconds, seconds and packets
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    TARGET: WRITABLE[0],
}
# With several hosts: 2 s are the least that libpq allows, and a frozen host must not delay the next one for longer.
CONNECT_TIMEOUT_OF_SEVERAL_S = 2
ANSWER_S = 2.0  # for a host to answer with its identity
POOLER_S = 130.0  # with connect_timeout=0; PgBouncer itself gives up after 120 s
_IDENTITY = (
    "SELECT system_identifier::text, CASE WHEN pg_is_in_recovery() THEN NULL"
    " ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END FROM pg_control_system()"
)


class PostgresIdentity(NamedTuple):
    """The identity of the Postgres that answers at a host."""

    system: str  # the cluster's identifier
    timeline: int  # 0 for a standby

    @classmethod
    def of(cls, row: Sequence[Any] | None) -> PostgresIdentity:
        assert row is not None, "the query has one row"
        system, timeline = row
        return cls(system, int(timeline or "0", 16))


class PrimaryConnections:
    """Makes connections to the primary, and has a list of the open ones."""

    def __init__(self, arguments: Mapping[str, Any], name: str) -> None:
        """`arguments` of psycopg for all hosts; `name`: the URL without its password."""
        self._name = name
        self.hosts = hosts_of(arguments)
        several = {"connect_timeout": CONNECT_TIMEOUT_OF_SEVERAL_S} if len(self.hosts) > 1 else {}
        self._arguments = {**DEFAULTS, **several, **arguments}
        if (name := str(self._arguments["application_name"])) != DEFAULTS["application_name"]:
            # `database.check` finds the sessions of servers by the first word.
            self._arguments["application_name"] = f"{DEFAULTS['application_name']} {name}"
        self._answer_s = float(self._arguments["connect_timeout"]) or POOLER_S
        self._writes = self._arguments[TARGET] in WRITABLE
        self._system: tuple[str, Host] | None = None
        self._timeline = 0
        self._order = list(self.hosts)
        self._open: weakref.WeakKeyDictionary[Any, PostgresIdentity | None] = weakref.WeakKeyDictionary()
        self._asking: set[asyncio.Task[Any]] = set()  # a query to a silent host may outlive the caller
        self._lock = threading.Lock()  # threads of the writer and the readers connect

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments of psycopg, for all hosts."""
        return self._arguments

    def connect(self) -> Connection[Any]:
        """A connection to the primary, in autocommit mode. Raises psycopg's errors and `StoreUnavailable`."""
        from psycopg import Connection, Error

        refusals: list[tuple[Host, Exception]] = []
        for host in tuple(self._order):
            try:
                conn = Connection.connect(autocommit=True, **self._at(host))
                try:
                    self._opened(conn)
                    with _ending(conn, self._answer_s):
                        # Not startup parameters, because PgBouncer refuses those.
                        self._check(conn.execute(BEGIN, prepare=False).fetchone())
                        identity = _identity(conn)
                    if self._accepts(conn, host, identity):
                        return conn
                except BaseException:
                    conn.close()
                    raise
                conn.close()
                refusals.append((host, _former()))
            except Error as error:
                refusals.append((host, error))
        raise _together(refusals)

    async def connect_async(self) -> AsyncConnection[Any]:
        """The same for the event loop."""
        from psycopg import AsyncConnection, Error

        refusals: list[tuple[Host, Exception]] = []
        for host in tuple(self._order):
            try:
                conn = await AsyncConnection.connect(autocommit=True, **self._at(host))
                try:
                    self._opened(conn)
                    with _ending(conn, self._answer_s):
                        self._check(await (await conn.execute(BEGIN, prepare=False)).fetchone())
                        identity = await _identity_async(conn)
                    if self._accepts(conn, host, identity):
                        return conn
                except BaseException:
                    await conn.close()
                    raise
                await conn.close()
                refusals.append((host, _former()))
            except Error as error:
                refusals.append((host, error))
        raise _together(refusals)

    async def check_hosts(self) -> Sequence[tuple[Host, str]]:
        """Ask all hosts for their identity, and use the newest primary. Returns hosts without an answer, with reasons.

        Raises `StoreUnavailable` if they belong to different clusters.
        """
        silent, found = [], []
        for host, answer in await asyncio.gather(*self._ask_all()):
            if isinstance(answer, PostgresIdentity):
                self._check_system(answer, host)
                found.append((answer, host))
            else:
                silent.append((host, answer))
        if found:
            self._is_newer(*max(found, key=lambda each: each[0].timeline))
        return silent

    async def newer_primary(self) -> Host | None:
        """Search for a primary that has replaced the known one, and cut all connections to the former. None if there is
        none."""
        for coming in asyncio.as_completed(self._ask_all()):
            host, answer = await coming
            if isinstance(answer, PostgresIdentity):
                self._check_system(answer, host)
                if self._is_newer(answer, host):
                    return host  # the queries to silent hosts end by themselves
        return None

    def _at(self, host: Host) -> dict[str, Any]:
        if len(self.hosts) == 1 and not (host.host or host.address):
            return dict(self._arguments)  # several hosts may be in a service file, which libpq reads
        given = {name: value for name, value in self._arguments.items() if name not in {"host", "port", "hostaddr"}}
        parts = {"host": host.host, "port": host.port, "hostaddr": host.address}
        target = {TARGET: "any"} if self._writes else {}
        return {**given, **{name: value for name, value in parts.items() if value}, **target}

    def _check(self, row: Sequence[Any] | None) -> None:
        """Raise psycopg's `OperationalError` or `StoreUnavailable` for a host that cannot be used. `row`: its answer to
        BEGIN."""
        facts = SessionFacts.of(row)
        if not self._writes:
            return
        if facts.is_standby:
            raise _refused("it is a standby, and read-only")
        if (fault := facts.fault) is not None:
            if len(self.hosts) > 1:
                raise _refused(f"it {fault}")
            raise StoreUnavailable(f"{self._name} {fault}")

    def _ask_all(self) -> list[asyncio.Task[tuple[Host, PostgresIdentity | str]]]:
        asking = [asyncio.create_task(self._ask(host)) for host in self.hosts]
        self._asking.update(asking)
        for each in asking:
            each.add_done_callback(self._asking.discard)
        return asking

    async def _ask(self, host: Host) -> tuple[Host, PostgresIdentity | str]:
        """The identity of a host, or why there is no answer."""
        from psycopg import AsyncConnection, Error

        try:
            async with asyncio.timeout(ANSWER_S):
                conn = await AsyncConnection.connect(autocommit=True, **self._at(host))
            # Cut, not cancelled: the driver would ask the silent host to cancel, and wait for its answer.
            ending = asyncio.get_running_loop().call_later(ANSWER_S, _cut, conn)
            async with conn:
                try:
                    return host, await _identity_async(conn) or "it does not permit pg_control_system()"
                finally:
                    ending.cancel()
        except TimeoutError:
            return host, f"no connection within {ANSWER_S:.0f} s"
        except Error as error:
            return host, first_line(error)

    def _opened(self, conn: AnyConnection) -> None:
        with self._lock:
            self._open[conn] = None

    def _accepts(self, conn: AnyConnection, host: Host, identity: PostgresIdentity | None) -> bool:
        """Whether a connection goes to the newest known primary."""
        if identity is None:
            return True
        self._check_system(identity, host)
        if identity.timeline < self._timeline:
            return False
        with self._lock:
            self._open[conn] = identity
            self._order.sort(key=lambda each: each != host)
        self._is_newer(identity, host)
        return True

    def _check_system(self, identity: PostgresIdentity, host: Host) -> None:
        with self._lock:
            if self._system is None:
                self._system = identity.system, host
            system, known = self._system
        if system != identity.system and len(self.hosts) == 1:
            raise StoreUnavailable(
                f"{self._name} was replaced, for example by pg_upgrade: its system identifier was"
                f" {system}, and is {identity.system} now; restart the server if this is meant"
            )
        if system != identity.system:
            raise StoreUnavailable(
                f"the hosts of {self._name} are different databases: {known} has the system identifier {system}, {host}"
                f" has {identity.system}; name only servers of one Postgres cluster, the primary and its standbys"
            )

    def _is_newer(self, identity: PostgresIdentity, host: Host) -> bool:
        """Whether this identity is newer. If so, its host is the primary now, and connections to the former are cut."""
        with self._lock:
            if identity.timeline <= self._timeline:
                return False
            self._timeline = identity.timeline
            self._order.sort(key=lambda each: each != host)
            former = [conn for conn, own in self._open.items() if own is None or own.timeline < identity.timeline]
        for conn in former:
            _cut(conn)
        return True


def first_line(error: Exception) -> str:
    """The first line of a driver's error, without its details."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _identity(conn: Connection[Any]) -> PostgresIdentity | None:
    """The identity; None if Postgres does not permit the query, as some services that are compatible with it."""
    from psycopg import errors

    try:
        return PostgresIdentity.of(conn.execute(_IDENTITY, prepare=False).fetchone())
    except (errors.InsufficientPrivilege, errors.UndefinedFunction, errors.FeatureNotSupported):
        return None


async def _identity_async(conn: AsyncConnection[Any]) -> PostgresIdentity | None:
    from psycopg import errors

    try:
        return PostgresIdentity.of(await (await conn.execute(_IDENTITY, prepare=False)).fetchone())
    except (errors.InsufficientPrivilege, errors.UndefinedFunction, errors.FeatureNotSupported):
        return None


def _former() -> Error:
    return _refused("this is a former primary, which another one has replaced")


def _refused(why: str) -> Error:
    from psycopg import OperationalError

    return OperationalError(f"connection refused by PopMQ: {why}")


def _together(refusals: Sequence[tuple[Host, Exception]]) -> Exception:
    """One error for those of all hosts."""
    if len(refusals) == 1:
        return refusals[0][1]
    from psycopg import OperationalError

    reasons = "; ".join(f"{host}: {_reason(error)}" for host, error in refusals)
    return OperationalError(f"no connection to a host that accepts writes: {reasons}")


def _reason(error: Exception) -> str:
    """libpq's reason without the address, which comes before it."""
    line = first_line(error)
    return line.rpartition(" failed: ")[2] or line


@contextmanager
def _ending(conn: AnyConnection, limit_s: float) -> Iterator[None]:
    """End the connection if the block takes longer: a pooler accepts connections for a host that is down, and waits."""
    timer = threading.Timer(limit_s, _cut, [conn])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _cut(conn: AnyConnection) -> None:
    """End a connection that another thread may be waiting for: it gets an error."""
    with suppress(Exception):  # it was closed meanwhile
        copy = os.dup(conn.fileno())
        with socket.socket(fileno=copy) as line:
            # If it was closed before the copy was made, the number may belong to another file.
            if not conn.closed:
                line.shutdown(socket.SHUT_RDWR)
