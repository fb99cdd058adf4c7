"""`enqueue` and `ack`: sending and acking inside the user's transaction."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, overload

from sqlalchemy import Connection, insert, text

from popclient._arguments import as_timedelta, shown
from popclient._session.message_id import new_message_id
from popclient._tracing import carrying
from popclient.config import ClientConfig
from popclient.message import Message, MessageView, as_message
from popclient.sql.connection import BROKER, Handle, function, refusals, require_broker, run_on, target_of
from popclient.sql.rules import require_acceptable
from popclient.sql.tables import outbox

if TYPE_CHECKING:
    from popclient.sql.connection import AsyncHandle

_EPOCH: Final = datetime.fromtimestamp(0, UTC)


@overload
def enqueue(session: Handle, message: Message, /, *, namespace: str = "") -> str: ...
@overload
def enqueue(
    session: Handle,
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
def enqueue(session: AsyncHandle, message: Message, /, *, namespace: str = "") -> Awaitable[str]: ...
@overload
def enqueue(
    session: AsyncHandle,
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
    session: Handle | AsyncHandle,
    message: Message | str,
    body: bytes | str = b"",
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
) -> str | Awaitable[str]:
    """Sends a message once the session's transaction commits, and never otherwise; returns its id.

    In the broker's own Postgres the message enters its topic right after the commit, or at its delivery timestamp. In
    any other database it goes into the table `popmq_outbox`, and `Relay` sends the committed messages by `outbox_id`.
    Messages of one message group keep their order within a transaction. Two transactions keep it if one calls `enqueue`
    after the other has committed: take the row lock that orders them first, then enqueue.

    namespace: of the topic; with an outbox it is that of the relay's producer.

    Raises what `Producer.send` raises for a message that the broker would refuse: TypeError, ValueError or a PopError.
    With an outbox the relay meets what only the broker knows: whether the topic exists and takes the message, and how
    long a delay may be. Raises UnsupportedByStore for a database that has neither a broker nor an outbox. A refusal by
    the broker's Postgres leaves a transaction that can only be rolled back.
    """
    carried = carrying(ClientConfig(), as_message("enqueue", locals()))
    return run_on(session, lambda conn: _enqueue(conn, carried, namespace))


def _enqueue(conn: Connection, message: Message, namespace: str) -> str:
    if target_of(conn) == BROKER:
        with refusals():
            call = text(f"SELECT {function(conn, 'popmq_enqueue')}({_NAMED})")
            stored: str = conn.execute(call, _values(message) | {"namespace": namespace}).scalar_one()
        return stored
    if namespace:
        raise ValueError(f"namespace {namespace!r} cannot be kept in an outbox; give it to the relay's producer")
    row = outbox_row(message)
    conn.execute(insert(outbox), row)
    return str(row["message_id"])


def _values(message: Message) -> dict[str, Any]:
    """The arguments of the SQL function, by name. Raises for a message that no server takes."""
    now_ms = time.time_ns() // 1_000_000
    require_acceptable(message)
    if message.lite_topic is not None:
        refused = f"lite_topic {message.lite_topic!r} cannot be kept in an outbox or a transaction"
        raise ValueError(f"{refused}; send with a Producer, or give a message_group")
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


def outbox_row(message: Message) -> dict[str, Any]:
    """The row of the outbox that carries the message, by column; with a new id if the message has none.

    Raises for a message that no server takes: after the commit it would be too late.
    """
    row = _values(message)
    keys, properties = row.pop("keys"), row.pop("properties")
    return row | {
        "keys": json.dumps(keys, ensure_ascii=False) if keys else None,
        "properties": properties if properties != "{}" else None,
        "written_at_ms": row.pop("born_at_ms"),
    }


# By name: an argument that a later version adds does not disturb this one.
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
_NAMED: Final = ", ".join(f"{name} => CAST(:{name} AS {kind})" for name, kind in _ARGUMENTS.items())


@overload
def ack(session: Handle, messages: MessageView | Iterable[MessageView], /) -> None: ...
@overload
def ack(session: AsyncHandle, messages: MessageView | Iterable[MessageView], /) -> Awaitable[None]: ...
def ack(session: Handle | AsyncHandle, messages: MessageView | Iterable[MessageView], /) -> Awaitable[None] | None:
    """Says that the message, or each of several, is done, as a part of the session's transaction.

    Your writes and the ack are committed together or not at all: exactly once, even if the process dies in between.
    Until your commit no other consumer gets the message. Do not ack it with its consumer as well.

    Raises HoldLost when the hold is over: the message is done already, or was delivered again. Raises OutOfOrder for a
    message with an un-acked one before it in its message group. After either, roll the transaction back. Raises
    UnsupportedByStore unless the database is the broker's Postgres.
    """
    listed = list(messages) if isinstance(messages, Iterable) and not isinstance(messages, str) else [messages]
    for each in listed:
        if not hasattr(each, "receipt_handle"):
            raise TypeError(f"ack takes received messages, not {shown(each)}; give the MessageView, or several")
    return run_on(session, lambda conn: _ack(conn, listed))


def _ack(conn: Connection, messages: list[MessageView]) -> None:
    require_broker(conn)
    call = text(f"SELECT {function(conn, 'popmq_ack')}(CAST(:receipt_handle AS text))")
    with refusals():
        for message in messages:
            conn.execute(call, {"receipt_handle": message.receipt_handle})
