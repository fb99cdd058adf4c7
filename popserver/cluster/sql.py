"""Keeper of the servers of this database, and of the push consumers that are connected to each.

Only servers on Postgres write these tables, because a SQLite file has one server. A row of `client` is valid while its
server has heartbeats. The server removes the row when the client is gone; heartbeats of clients write nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from sqlalchemy import Connection, bindparam, delete, func, insert, literal_column, or_, select, text, tuple_, update

from popserver.database.notifications import EVERYTHING, SERVERS, WANTS
from popserver.database.rows import encode_column, encode_rows, rows_parameter
from popserver.database.schema import client, server
from popserver.engine.transaction import STEP_ROWS_MAX, Phase, Request, Transaction, carries_out, carries_out_each
from popserver.members import sql as members_sql
from popserver.model.errors import PopError
from popserver.model.retry import CLIENT_LAPSE_MS, SECOND_MS

HEARTBEAT_MS = 1 * SECOND_MS
LONE_HEARTBEAT_MS = 3 * SECOND_MS  # if there is no other server
SERVER_LAPSE_MS = 4 * SECOND_MS
STOPPED = 2  # in `leaves`


class Server(NamedTuple):
    """A running server. `address`: for clients, empty if unknown. `leaves`: it stops soon, and no route names it."""

    server_id: str
    address: str
    leaves: bool = False


class KnownServer(NamedTuple):
    """A server that runs, or that was killed a short time ago, and the time of its last heartbeat."""

    server_id: str
    address: str
    last_seen_ms: int
    is_running: bool
    leaves: bool = False


class HeartbeatResult(NamedTuple):
    """The other running servers, and up to 1,000 clients of servers that stopped long ago."""

    others: tuple[Server, ...]
    left_behind: tuple[str, ...]
    newest_ms: int  # the latest heartbeat of another server, by its own clock; 0 if there is none
    is_new: bool = False  # the server that sent the heartbeat was not listed


@dataclass(frozen=True, slots=True)
class Heartbeat(Request[HeartbeatResult]):
    """A server's heartbeat.

    `judges`: the server ran all the time, so it may decide which other servers are gone. `leaves`: it stops soon.
    """

    phase: ClassVar = Phase.HEARTBEAT
    server_id: str
    address: str
    judges: bool
    ahead_ms: int = 0  # how far its time is ahead of the database's clock
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class Leave(Request[None]):
    """A server has stopped. Its clients have the usual time to connect to another server."""

    phase: ClassVar = Phase.LEAVE
    server_id: str


@dataclass(frozen=True, slots=True)
class AttachClient(Request[bool]):
    """A push consumer connected to this server. `inherits`: remove its rows of servers that stopped long ago."""

    phase: ClassVar = Phase.ATTACH_CLIENTS
    client_id: str
    server_id: str
    inherits: bool = False


@dataclass(frozen=True, slots=True)
class DetachClient(Request[bool]):
    """A push consumer left this server; `everywhere`: it reported that it stops, so it left all servers."""

    phase: ClassVar = Phase.ATTACH_CLIENTS
    client_id: str
    server_id: str
    inherits: bool = False
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class AdoptClients(Request[None]):
    """Make all servers check everything, because a new server missed earlier notifications."""

    phase: ClassVar = Phase.ADOPT_CLIENTS


@dataclass(frozen=True, slots=True)
class AnnounceWants(Request[None]):
    """Announce to the other servers of which topics this one wants to be notified."""

    phase: ClassVar = Phase.ANNOUNCE_WANTS


@dataclass(frozen=True, slots=True)
class NotifyLate(Request[None]):
    """Notify the other servers of these topics: they did not want it when messages were committed, and want it now."""

    phase: ClassVar = Phase.NOTIFY_LATE
    topics: frozenset[int]


@carries_out_each(Leave)
def leave(tx: Transaction, request: Leave) -> None:
    tx.conn.execute(_UNLIST, {"its_id": request.server_id})
    tx.signal(SERVERS)


@carries_out_each(AdoptClients)
def adopt_clients(tx: Transaction, _: AdoptClients) -> None:
    tx.signal(EVERYTHING)


@carries_out_each(AnnounceWants)
def announce_wants(tx: Transaction, _: AnnounceWants) -> None:
    tx.signal(WANTS)


@carries_out_each(NotifyLate)
def notify_late(tx: Transaction, request: NotifyLate) -> None:
    tx.ready_topics |= request.topics


@carries_out(AttachClient, DetachClient)
def attend(tx: Transaction, requests: Sequence[AttachClient | DetachClient]) -> list[bool | PopError]:
    """Write which clients are connected to which server. Returns for each request whether its client has no server now.

    It locks all rows of these clients first, in one order. So if two servers lose a client at the same time, the second
    one finds that it was the last.
    """
    client_ids = sorted({request.client_id for request in requests})
    before = _attended(tx.conn, client_ids)
    after = {client_id: set(before[client_id]) for client_id in client_ids}
    unseen = _long_unseen(tx) if any(request.inherits for request in requests) else set()
    answers: list[bool | PopError] = [_carry_out(request, after[request.client_id], unseen) for request in requests]
    _write(tx, _pairs(before), _pairs(after))
    return answers


def forget_servers(conn: Connection) -> None:
    """Remove the rows of servers that were killed; no server runs."""
    conn.execute(delete(client))
    conn.execute(delete(server))


def newest_heartbeat_ms(conn: Connection) -> int:
    """The latest heartbeat of any server; 0 for none. A new server's clock must not start behind it."""
    return conn.execute(_NEWEST).scalar() or 0


def clock_ms(conn: Connection) -> float:
    """The time of the database (Postgres), which all servers share, in epoch ms."""
    return float(conn.execute(_CLOCK).scalar_one())


def ahead_ms(conn: Connection, system_ms: int) -> int | None:
    """How far the running servers' time is ahead of the database's clock, in ms; None if no server runs."""
    return conn.execute(_AHEAD, {"since_ms": system_ms - SERVER_LAPSE_MS}).scalar()


def known(conn: Connection, now_ms: int) -> list[KnownServer]:
    """The servers by address, without those that have reported that they have stopped.

    For each address: the servers that run, several if they are workers; if none runs, the one with the last heartbeat.
    """
    by_address: dict[str, list[KnownServer]] = {}
    for row in conn.execute(_KNOWN, {"since_ms": now_ms - SERVER_LAPSE_MS}):
        is_running = row.last_seen_ms > now_ms - SERVER_LAPSE_MS
        found = KnownServer(row.server_id, row.address, row.last_seen_ms, is_running, bool(row.leaves))
        of_address = by_address.setdefault(row.address or row.server_id, [])
        if found.is_running or not of_address:
            of_address.append(found)
    return [each for of_address in by_address.values() for each in of_address]


def unattended(conn: Connection, clients: Sequence[str]) -> list[str]:
    """Those of these clients that are connected to no server."""
    attended = set(conn.execute(_ATTENDED, {"clients": encode_column(clients)}).scalars())
    return [each for each in clients if each not in attended]


@carries_out_each(Heartbeat)
def heartbeat(tx: Transaction, request: Heartbeat) -> HeartbeatResult:
    """Write heartbeats. Remove servers that stopped long ago, after their clients were taken over."""
    names = {
        "its_id": request.server_id,
        "at": request.address,
        "now_ms": tx.now_ms,
        "ahead": request.ahead_ms,
        "leaves_now": int(request.leaves),
    }
    is_new = False
    if not tx.conn.execute(_AGAIN, names).rowcount:
        is_new = not tx.conn.execute(_CHANGED, names).rowcount
        if is_new:
            tx.conn.execute(_FIRST, names)
        tx.signal(SERVERS)
    left_behind = _left_behind(tx) if request.judges else ()
    if request.judges:
        members_sql.forget_unseen(tx, select(server.c.server_id).where(server.c.last_seen_ms > _lapse_ms(tx)))
    since_ms = tx.now_ms - SERVER_LAPSE_MS
    others = tx.conn.execute(_OTHERS, {"own_id": request.server_id, "since_ms": since_ms}).all()
    return HeartbeatResult(
        tuple(Server(each.server_id, each.address, bool(each.leaves)) for each in others),
        left_behind,
        max((each.last_seen_ms for each in others), default=0),
        is_new,
    )


def _left_behind(tx: Transaction) -> tuple[str, ...]:
    unseen = _long_unseen(tx)
    if not unseen:
        return ()
    listed = {"servers": encode_column(sorted(unseen))}
    clients = tuple(tx.conn.execute(_CLIENTS_OF, listed).scalars())
    if not clients:
        tx.conn.execute(_FORGET, listed)
        tx.signal(SERVERS)
    return clients


def _long_unseen(tx: Transaction) -> set[str]:
    """Servers that stopped so long ago that their clients count as gone, unless another server has them."""
    return set(tx.conn.execute(_LONG_UNSEEN, {"until_ms": _lapse_ms(tx)}).scalars())


def _lapse_ms(tx: Transaction) -> int:
    return tx.now_ms - CLIENT_LAPSE_MS


def _attended(conn: Connection, client_ids: Collection[str]) -> dict[str, set[str]]:
    """Lock the rows of these clients. Returns the servers that each client is connected to."""
    have: dict[str, set[str]] = {client_id: set() for client_id in client_ids}
    for row in conn.execute(_LOCK, {"clients": encode_column(client_ids)}):
        have[row.client_id].add(row.server_id)
    return have


def _carry_out(request: AttachClient | DetachClient, servers: set[str], unseen: set[str]) -> bool:
    if request.inherits:
        servers -= unseen
    if isinstance(request, AttachClient):
        servers.add(request.server_id)
    elif request.everywhere:
        servers.clear()
    else:
        servers.discard(request.server_id)
    return not servers


def _pairs(have: dict[str, set[str]]) -> set[tuple[str, str]]:
    return {(client_id, server_id) for client_id, servers in have.items() for server_id in servers}


def _write(tx: Transaction, before: set[tuple[str, str]], after: set[tuple[str, str]]) -> None:
    if ended := before - after:
        tx.conn.execute(_REMOVE, {"pairs": encode_rows(sorted(ended))})
    if begun := after - before:
        tx.conn.execute(_INSERT, {"pairs": encode_rows(sorted(begun)), "now_ms": tx.now_ms})


_AGAIN = (
    update(server)
    .where(
        server.c.server_id == bindparam("its_id"),
        server.c.address == bindparam("at"),
        server.c.leaves == bindparam("leaves_now"),
    )
    .values(last_seen_ms=bindparam("now_ms"), ahead_ms=bindparam("ahead"))
)
_CHANGED = (
    update(server)
    .where(server.c.server_id == bindparam("its_id"))
    .values(
        address=bindparam("at"),
        last_seen_ms=bindparam("now_ms"),
        ahead_ms=bindparam("ahead"),
        leaves=bindparam("leaves_now"),
    )
)
_FIRST = insert(server).values(
    server_id=bindparam("its_id"),
    address=bindparam("at"),
    last_seen_ms=bindparam("now_ms"),
    ahead_ms=bindparam("ahead"),
    leaves=bindparam("leaves_now"),
)
_UNLIST = update(server).where(server.c.server_id == bindparam("its_id")).values(address="", leaves=STOPPED)
_OTHERS = (
    select(server.c.server_id, server.c.address, server.c.last_seen_ms, server.c.leaves)
    .where(server.c.server_id != bindparam("own_id"), server.c.last_seen_ms > bindparam("since_ms"))
    # If two servers have one address, the newer one comes first: it has replaced the other, which was killed.
    .order_by(server.c.address, server.c.last_seen_ms.desc())
)
_KNOWN = (
    select(server.c.server_id, server.c.address, server.c.last_seen_ms, server.c.leaves)
    # A server without an address counts while it runs.
    .where(server.c.leaves != STOPPED, or_(server.c.address != "", server.c.last_seen_ms > bindparam("since_ms")))
    .order_by(server.c.address, server.c.last_seen_ms.desc())
)
_AHEAD = select(func.max(server.c.ahead_ms)).where(
    server.c.last_seen_ms - server.c.ahead_ms > bindparam("since_ms"), server.c.address != ""
)
_CLOCK = text("SELECT extract(epoch FROM clock_timestamp()) * 1000")
_NEWEST = select(server.c.last_seen_ms).order_by(server.c.last_seen_ms.desc()).limit(1)
_LONG_UNSEEN = select(server.c.server_id).where(server.c.last_seen_ms <= bindparam("until_ms"))
_SERVERS = rows_parameter("servers", text=("server_id",))
_CLIENTS_OF = (
    select(client.c.client_id)
    .where(client.c.server_id.in_(select(_SERVERS.c.server_id)))
    .distinct()
    .limit(literal_column(str(STEP_ROWS_MAX)))
)
# It skips locked rows: after a time without the database two servers may remove each other at once. If they waited for
# each other's rows, they would deadlock.
_FORGET = delete(server).where(
    server.c.server_id.in_(
        select(server.c.server_id)
        .where(server.c.server_id.in_(select(_SERVERS.c.server_id)))
        .with_for_update(skip_locked=True)
        .correlate(None)
    )
)
_CLIENTS = rows_parameter("clients", text=("client_id",))
_LOCK = (
    select(client.c.client_id, client.c.server_id)
    .where(client.c.client_id.in_(select(_CLIENTS.c.client_id)))
    .order_by(client.c.client_id, client.c.server_id)
    .with_for_update()
)
_PAIRS = rows_parameter("pairs", text=("client_id", "server_id"))
_REMOVE = delete(client).where(
    tuple_(client.c.client_id, client.c.server_id).in_(select(_PAIRS.c.client_id, _PAIRS.c.server_id))
)
_INSERT = insert(client).from_select(
    ["client_id", "server_id", "last_seen_ms"],
    select(_PAIRS.c.client_id, _PAIRS.c.server_id, bindparam("now_ms", type_=client.c.last_seen_ms.type)),
)
_ATTENDED = select(client.c.client_id).where(client.c.client_id.in_(select(_CLIENTS.c.client_id)))
