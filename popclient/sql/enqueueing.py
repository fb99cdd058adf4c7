"""Sending inside the user's transaction."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, overload

from sqlalchemy import Connection, insert, text

from popclient._arguments import as_timedelta
from popclient._message_id import new_message_id
from popclient._tracing import carrying
from popclient.config import ClientConfig
from popclient.message import Message
from popclient.sql.doors import BROKER, Door, place_of, refusals, through
from popclient.sql.tables import outbox

if TYPE_CHECKING:
    from popclient.sql.doors import AsyncDoor

_EPOCH: Final = datetime.fromtimestamp(0, UTC)


@overload
def enqueue(session: Door, message: Message, /, *, namespace: str = "") -> str: ...
@overload
def enqueue(
    session: Door,
    topic: str,
    body: bytes | str,
    /,
    *,
    namespace: str = "",
    tag: str | None = None,
    keys: str | Iterable[str] = (),
    properties: Mapping[str, str] | None = None,
    message_group: str | None = None,
    delivery_timestamp: datetime | None = None,
    priority: int | None = None,
    delay: float | timedelta | None = None,
    idempotency_key: str | None = None,
) -> str: ...
@overload
def enqueue(session: AsyncDoor, message: Message, /, *, namespace: str = "") -> Awaitable[str]: ...
@overload
def enqueue(
    session: AsyncDoor,
    topic: str,
    body: bytes | str,
    /,
    *,
    namespace: str = "",
    tag: str | None = None,
    keys: str | Iterable[str] = (),
    properties: Mapping[str, str] | None = None,
    message_group: str | None = None,
    delivery_timestamp: datetime | None = None,
    priority: int | None = None,
    delay: float | timedelta | None = None,
    idempotency_key: str | None = None,
) -> Awaitable[str]: ...
def enqueue(
    session: Door | AsyncDoor,
    message: Message | str,
    body: bytes | str = b"",
    /,
    *,
    namespace: str = "",
    **fields: Any,
) -> str | Awaitable[str]:
    """Sends a message once the session's transaction commits, and never otherwise; returns its id.

    In the broker's own Postgres it enters its topic right after the commit, or at its delivery timestamp. In any other
    database it is written to the table `popmq_outbox`, and `Relay` sends it, by `outbox_id` among what is committed.
    Messages of one message group that one transaction enqueues keep their order. Between two transactions order is kept
    if one began its `enqueue` after the other's commit: take the row lock that orders them, then enqueue.

    namespace: of the topic; with an outbox the relay's producer names it.

    Raises a PopError for a message the broker would refuse, and UnsupportedByStore for a database that is neither. In
    Postgres the transaction can then only be rolled back.
    """
    given = carrying(ClientConfig(), _as_message(message, body, fields))
    return through(session, lambda conn: _enqueue(conn, given, namespace))


def _enqueue(conn: Connection, message: Message, namespace: str) -> str:
    values = _values(message)
    if place_of(conn) == BROKER:
        with refusals():
            stored: str = conn.execute(_CALL, values | {"namespace": namespace}).scalar_one()
        return stored
    if namespace:
        raise ValueError(f"namespace {namespace!r} cannot be kept in an outbox; give it to the relay's producer")
    conn.execute(insert(outbox), _row(values))
    return str(values["message_id"])


def _as_message(given: Message | str, body: bytes | str, fields: Mapping[str, Any]) -> Message:
    if not isinstance(given, Message):
        return Message(given, body, **{name: value for name, value in fields.items() if value is not None})
    if body or fields:
        raise TypeError("enqueue takes a Message alone, or a topic, a body and fields; not both")
    return given


def _values(message: Message) -> dict[str, Any]:
    """What the SQL function takes, by its names."""
    now_ms = time.time_ns() // 1_000_000
    return {
        "topic": message.topic,
        "body": message.body.encode() if isinstance(message.body, str) else message.body,
        "message_id": message.message_id or new_message_id(),
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": json.dumps(message.all_properties, ensure_ascii=False),
        "message_group": message.message_group,
        "deliver_at_ms": _due_ms(message, now_ms),
        "priority": message.priority,
        "trace_context": message.trace_context,
        "born_at_ms": now_ms,
    }


def _due_ms(message: Message, now_ms: int) -> int | None:
    if message.delay is not None:
        return now_ms + as_timedelta("delay", message.delay) // timedelta(milliseconds=1)
    if message.delivery_timestamp is None:
        return None
    return (message.delivery_timestamp - _EPOCH) // timedelta(milliseconds=1)


def _row(values: dict[str, Any]) -> dict[str, Any]:
    row = dict(values)
    keys, properties = row.pop("keys"), row.pop("properties")
    return row | {
        "keys": json.dumps(keys, ensure_ascii=False) if keys else None,
        "properties": properties if properties != "{}" else None,
        "written_at_ms": row.pop("born_at_ms"),
    }


# By name, so that a later argument of the function disturbs no earlier client.
_ARGUMENTS: Final = {
    "topic": "text",
    "body": "bytea",
    "message_id": "text",
    "tag": "text",
    "keys": "text[]",
    "properties": "jsonb",
    "message_group": "text",
    "deliver_at_ms": "bigint",
    "priority": "integer",
    "trace_context": "text",
    "born_at_ms": "bigint",
    "namespace": "text",
}
_CALL: Final = text(
    f"SELECT popmq_enqueue({', '.join(f'{name} => CAST(:{name} AS {kind})' for name, kind in _ARGUMENTS.items())})"
)
