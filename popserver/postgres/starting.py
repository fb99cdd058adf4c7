"""The checks before a server uses a Postgres: of its hosts, and of a pooler in front of it, such as PgBouncer.

PopMQ needs sessions: it listens to notifications, sets parameters, and its driver prepares statements. A pooler in
session mode keeps them. In transaction mode each transaction may run in another session, without all of these.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import structlog

from popserver.model.errors import StoreUnavailable
from popserver.postgres.connections import PrimaryConnections, first_line

TRIES = 5  # another user of the pooler may take the session between two statements
LOG_WAIT_S = 3.0  # a start that takes longer may wait for a standby
PATIENCE_S = 5.0  # a pooler that has no session left lets callers wait

_WAITS = (
    "SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND usename = session_user"
    " AND datname = current_database() AND application_name = current_setting('application_name')"
)

log = structlog.get_logger("popserver.postgres")


async def check(connections: PrimaryConnections, name: str) -> None:
    """Raise `StoreUnavailable` for hosts that are different databases, and for a pooler that shares sessions."""
    if len(connections.hosts) > 1:
        for host, reason in await connections.check_hosts():
            log.warning("a host of the database does not report its identity", host=str(host), reason=reason)
    await _check_sessions(connections, name)


async def log_wait(connections: PrimaryConnections) -> None:
    """If the start takes long because no synchronous standby confirms its commits, log this once."""
    from psycopg import Error

    await asyncio.sleep(LOG_WAIT_S)
    with suppress(Error, StoreUnavailable):  # the start itself reports these
        async with await connections.connect_async() as conn:
            if await (await conn.execute(_WAITS, prepare=False)).fetchone() is not None:
                log.warning(
                    "the start waits for a synchronous standby",
                    reason="a commit counts when a standby has it; start one, or see synchronous_standby_names",
                )


async def _check_sessions(connections: PrimaryConnections, name: str) -> None:
    """Raise `StoreUnavailable` if a pooler gives the session of one connection to other connections."""
    from psycopg import Error

    try:
        async with asyncio.timeout(PATIENCE_S):
            shares = await _shares_sessions(connections)
    except TimeoutError:
        return  # the second connection got no session, so the two do not share one
    except Error as error:
        # "transaction blocks not allowed in statement pooling mode". Other errors come again when the server connects.
        shares = "pooling" in first_line(error)
    if shares:
        raise StoreUnavailable(
            f"{name} leads to a pooler that shares sessions between connections, such as PgBouncer with"
            " pool_mode=transaction, but PopMQ needs sessions of its own (LISTEN, prepared statements, settings); set"
            " pool_mode=session for this database in the pooler, or name Postgres itself"
        )


async def _shares_sessions(connections: PrimaryConnections) -> bool:
    """Whether a transaction of another connection runs in the session that ours had just before."""
    async with await connections.connect_async() as conn:
        own = await _session(conn)
        # Postgres sends the number of its process, by which clients cancel; a pooler invents one.
        if own == conn.info.backend_pid:
            return False
        async with await connections.connect_async() as other:
            for _ in range(TRIES):
                await other.execute("BEGIN", prepare=False)
                theirs = await _session(other)
                await other.execute("ROLLBACK", prepare=False)
                if theirs == own or await _session(conn) != own:
                    return True
    return False


async def _session(conn: Any) -> int:
    """The number of the process of Postgres that carries out statements of this connection."""
    (pid,) = await (await conn.execute("SELECT pg_backend_pid()", prepare=False)).fetchone()
    return int(pid)
