"""The refusals of Postgres, and the way out of each.

A failed statement has an SQLSTATE, which is the same in every language (`lc_messages`), and Postgres has undone it. A
failed connection has only a text. For English texts the error names the way out; other texts are reported unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from popserver.model.errors import Internal, PopError, StoreFull, StoreUnavailable

READ_ONLY: Final = "25006"  # a write in a read-only transaction


class StateRefusal(NamedTuple):
    """The meaning of a refusal for users: `what` follows the name of the database."""

    what: str
    way_out: str


_SCHEMA = StateRefusal(
    "does not have the schema that this popmq uses",
    "see what was dropped or changed there, and restore a backup; without messages to keep, use an empty database",
)
_STRANGER = StateRefusal("has an object of another program with a name of ours", "choose an empty database or schema")
_DAMAGED = StateRefusal("is damaged", "restore it from a backup, and check its disk")
_DISK = StateRefusal("cannot use its disk", "see the log of Postgres, mend the disk or its rights, and repeat")
_BY_STATE: Final[Mapping[str, StateRefusal]] = {
    READ_ONLY: StateRefusal("accepts no writes now", "repeat, or see which host is the primary"),
    "42501": StateRefusal(
        "does not permit this to the role",
        "let it own the database (ALTER DATABASE … OWNER TO …), or GRANT USAGE, CREATE ON SCHEMA … and the rights on"
        " PopMQ's tables; where row-level security hides rows, switch it off for these tables",
    ),
    "3F000": StateRefusal(
        "has no schema for PopMQ's tables",
        "create the one that search_path names (CREATE SCHEMA public AUTHORIZATION …), or ALTER ROLE … SET search_path",
    ),
    "42P01": _SCHEMA,
    "42703": _SCHEMA,
    "42883": _SCHEMA,
    "42P07": _STRANGER,
    "42710": _STRANGER,
    "42723": _STRANGER,
    "42704": StateRefusal(
        "does not have something that its settings name",
        "see default_tablespace and the other settings of the database and the role (\\drds in psql)",
    ),
    "0A000": StateRefusal("cannot do what PopMQ needs", "use a Postgres of version 13 or newer"),
    "53200": StateRefusal("is out of memory", "give Postgres more, or lower its work_mem, and repeat"),
    "53300": StateRefusal("has no connection left", "raise max_connections, or end other programs, and repeat"),
    "53400": StateRefusal("has reached a limit of its configuration", "raise it, and repeat"),
    "54000": StateRefusal("has reached a limit", "see the log of Postgres, and repeat"),
    "55P03": StateRefusal(
        "waits for another program's lock", "end its transaction, which pg_blocking_pids() finds, and repeat"
    ),
    "57014": StateRefusal("was asked to cancel this statement", "repeat"),
    "57P03": StateRefusal("is not ready yet", "wait until it is, and repeat"),
    "58030": _DISK,
    "58P01": _DISK,
    "XX001": _DAMAGED,
    "XX002": _DAMAGED,
}

# A refused connection, by words of Postgres, libpq and PgBouncer: the first pattern that fits.
_BY_WORDS: Final[Sequence[tuple[re.Pattern[str], StateRefusal]]] = tuple(
    (re.compile(words), StateRefusal(what, way_out))
    for words, what, way_out in (
        (
            r'database "[^"]*" does not exist|no such database',
            "does not exist",
            "create the database (createdb NAME), or name another one in the URL",
        ),
        (
            r'role "[^"]*" does not exist',
            "has no such role",
            "create it (CREATE ROLE … LOGIN), or name another user in the URL",
        ),
        (
            "password authentication failed|no password supplied|authentication failed",
            "does not accept the password",
            "give the role's password in the URL, in PGPASSWORD or in ~/.pgpass",
        ),
        (
            "too many|remaining connection slots|no more connections allowed",
            "has no connection left",
            "raise max_connections, or the limit of the role, the database or the pooler; a server needs up to six",
        ),
        (
            "no pg_hba.conf entry|pg_hba.conf rejects|SSL required|no encryption",
            "does not let this role in from here",
            "permit it in pg_hba.conf, and ask for TLS if it must be (?sslmode=require)",
        ),
        ("does not support SSL", "speaks no TLS", "switch `ssl` on in Postgres, or leave sslmode out of the URL"),
        (
            "certificate|SSL error",
            "and PopMQ do not agree on TLS",
            "see sslmode, sslrootcert, sslcert and sslkey in the URL",
        ),
        ("permission denied for database", "does not let this role in", "GRANT CONNECT ON DATABASE … TO the role"),
        ("not permitted to log in", "does not let this role in", "ALTER ROLE … LOGIN, or name another user in the URL"),
        (
            "not currently accepting connections",
            "accepts no connections",
            "ALTER DATABASE … ALLOW_CONNECTIONS true, or name another database in the URL",
        ),
        (
            "starting up|shutting down|recovery mode|not yet accepting",
            "is not ready",
            "wait until it has started, and repeat",
        ),
        (
            r"unsupported startup parameter",
            "leads to a pooler that refuses an option of the URL",
            "leave that option out, or name it in the pooler's ignore_startup_parameters",
        ),
        (
            "invalid .*value|invalid connection option|definition of service|service file",
            "cannot be connected to with these options",
            "mend that option of the URL",
        ),
        ("refused by PopMQ", "cannot be used", "see which host is the primary, check that it runs, and repeat"),
        (
            "(?i)refused|time-?d? ?out|resolve|translate|unreachable|no such file|closed|reset|no route|terminat|lost",
            "does not answer",
            "check that it runs, and repeat",
        ),
    )
)
_NO_CONNECTION: Final = StateRefusal("gives no connection", "check that it runs and lets PopMQ in, and repeat")
_ENDED: Final = {"57P01", "57P02", "57P05", "25P03", "25P04"}  # Postgres, or one of its time-outs, ended the session
_LOST: Final = StateRefusal("does not answer", "check that it runs, and repeat")


def refusal(name: str, said: str, state: str | None, *, is_lost: bool) -> PopError:
    """The error for a refusal of Postgres or libpq. `said`: its text; `state`: its SQLSTATE or None; `is_lost`: whether
    the connection is lost."""
    words = said.partition("\n")[0]
    if state == "53100":
        return StoreFull(f"the disk of {name} is full ({words}); nothing was stored, free some space and repeat")
    if (known := _BY_STATE.get(state or "")) is not None:
        found = known
    elif is_lost or state in _ENDED:
        found = _LOST
    elif state is None:
        words = words.rpartition(" failed: ")[2].removeprefix("connection is bad: ")
        found = next((each for pattern, each in _BY_WORDS if pattern.search(said)), _NO_CONNECTION)
    else:
        return Internal(f"{name} refused a statement ({words}); it changed nothing, repeat the request")
    return StoreUnavailable(f"{name} {found.what} ({words}); {found.way_out}")
