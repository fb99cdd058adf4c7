"""The user's session or connection, of any kind: runs statements on it, and finds out which tables its database has.

Nothing here begins, commits or rolls back a transaction: the user does.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session

from popclient.errors import HoldLost, OutOfOrder, PopError, UnsupportedByStore, error_of
from popclient.sql.tables import outbox
from popproto.v2 import definition_pb2 as pb

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    AsyncHandle = AsyncSession | AsyncConnection | async_scoped_session[Any]

Handle = Session | Connection | scoped_session[Any]
T = TypeVar("T")

BROKER: Final = "broker"
OUTBOX: Final = "outbox"

# The SQLSTATEs with which the SQL functions refuse, as codes of the wire.
_CODES: Final = {
    "PM000": pb.BAD_REQUEST,
    "PM002": pb.ILLEGAL_TOPIC,
    "PM004": pb.ILLEGAL_MESSAGE_TAG,
    "PM005": pb.ILLEGAL_MESSAGE_KEY,
    "PM006": pb.ILLEGAL_MESSAGE_GROUP,
    "PM007": pb.ILLEGAL_MESSAGE_PROPERTY_KEY,
    "PM009": pb.ILLEGAL_MESSAGE_ID,
    "PM012": pb.ILLEGAL_DELIVERY_TIME,
    "PM014": pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    "PM101": pb.MESSAGE_PROPERTIES_TOO_LARGE,
    "PM301": pb.MESSAGE_BODY_TOO_LARGE,
    "PM302": pb.MESSAGE_BODY_EMPTY,
    "PM402": pb.TOPIC_NOT_FOUND,
}
_targets: weakref.WeakKeyDictionary[Engine, str] = weakref.WeakKeyDictionary()
_prefixes: weakref.WeakKeyDictionary[Engine, str] = weakref.WeakKeyDictionary()


def run_on(handle: Handle | AsyncHandle, work: Callable[[Connection], T]) -> T | Awaitable[T]:
    """The result of `work` on the handle's connection; an awaitable if the handle is asynchronous.

    Raises TypeError for what has no transaction, such as an Engine.
    """
    if hasattr(handle, "run_sync"):
        return handle.run_sync(lambda inner: work(_connection(inner)))
    return work(_connection(handle))


@contextmanager
def refusals() -> Iterator[None]:
    """Raises a refusal of the SQL functions as a PopError."""
    try:
        yield
    except DBAPIError as error:
        if (refusal := _refusal(error)) is None:
            raise
        raise refusal from error


def target_of(conn: Connection) -> str:
    """Where this database sends messages: to its own BROKER, or into an OUTBOX.

    Raises UnsupportedByStore for a database that has neither. Keeps an answer, but not a refusal.
    """
    found = _targets.get(conn.engine)
    if found is None:
        found = _targets[conn.engine] = _find_target(conn)
    return found


def require_broker(conn: Connection) -> None:
    """Raises UnsupportedByStore unless the connection is to a broker's Postgres."""
    if _targets.get(conn.engine) == BROKER:
        return
    if not _is_brokers_postgres(conn):
        raise UnsupportedByStore(
            f"{name_of(conn)} is not the Postgres database of a PopMQ broker, and only there a transaction can end a"
            " hold; ack with the consumer after your commit, and let popclient.sql.idempotent drop repetitions"
        )
    _targets[conn.engine] = BROKER


def function(conn: Connection, name: str) -> str:
    """A SQL function of the broker, with its schema: the session's search path need not have it. Of several brokers in
    a database the search path of each session chooses."""
    return f"{_prefixes[conn.engine]}{name}"


def _find_target(conn: Connection) -> str:
    is_brokers = _is_brokers_postgres(conn)
    if is_brokers and _is_visible(conn):
        return BROKER
    tables = set(inspect(conn).get_table_names())
    if outbox.name in tables:
        return OUTBOX
    if is_brokers:
        return BROKER
    if {"pending", "message", "delivery", "consumer_group"} <= tables:
        raise UnsupportedByStore(
            f"{name_of(conn)} is the SQLite file of a PopMQ broker, which alone writes there; send with a Producer,"
            " keep an outbox in a database of your own, or run the broker on Postgres"
        )
    raise UnsupportedByStore(
        f"{name_of(conn)} is not the Postgres database of a PopMQ broker and has no table {outbox.name}; make it with:"
        " popclient.sql.metadata.create_all(engine), and run: popmq relay --database-url URL"
    )


def _is_brokers_postgres(conn: Connection) -> bool:
    if conn.dialect.name != "postgresql":
        return False
    schemas = conn.execute(_BROKERS).scalars().all()
    if not schemas:
        return False
    _prefixes[conn.engine] = f"{schemas[0]}." if len(schemas) == 1 or not _is_visible(conn) else ""
    return True


def _is_visible(conn: Connection) -> bool:
    return conn.execute(text("SELECT to_regproc('popmq_enqueue') IS NOT NULL")).scalar_one() is True


# The schemas that have the broker's functions, those of the search path first.
_BROKERS: Final = text(
    "SELECT quote_ident(n.nspname) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
    " WHERE p.proname = 'popmq_enqueue' AND has_schema_privilege(n.oid, 'USAGE')"
    " ORDER BY array_position(current_schemas(false), n.nspname), n.nspname"
)


def _connection(handle: Any) -> Connection:
    if isinstance(handle, Connection):
        return handle
    if isinstance(handle, type) or not hasattr(handle, "connection"):
        raise TypeError(
            f"the session is of type {type(handle).__name__}, which has no transaction; give a Session or a Connection,"
            " such as that of `with Session.begin() as session:` or `with engine.begin() as connection:`"
        )
    found: Connection = handle.connection()
    return found


def name_of(conn: Connection) -> str:
    return conn.engine.url.render_as_string(hide_password=True)


def _refusal(error: DBAPIError) -> PopError | None:
    state, sentence = state_and_message(error.orig)
    if not state.startswith("PM"):
        return None
    if state == "PM013":
        return HoldLost(sentence, code=pb.INVALID_RECEIPT_HANDLE, name="INVALID_RECEIPT_HANDLE")
    if state == "PM800":
        return OutOfOrder(sentence)
    return error_of(pb.Status(code=_CODES.get(state, pb.BAD_REQUEST), message=sentence))


def state_and_message(error: BaseException | None) -> tuple[str, str]:
    """SQLSTATE and message, as psycopg, psycopg2, asyncpg and pg8000 keep them."""
    fields = error.args[0] if error is not None and error.args else None
    if isinstance(fields, dict):
        return fields.get("C", ""), fields.get("M", "")
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""
    message = getattr(getattr(error, "diag", None), "message_primary", None) or str(error)
    return state, message.partition("\n")[0]
