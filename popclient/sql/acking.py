"""Acking inside the user's transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Final, overload

from sqlalchemy import Connection, text

from popclient.message import MessageView
from popclient.sql.doors import Door, refusals, require_broker, through

if TYPE_CHECKING:
    from popclient.sql.doors import AsyncDoor


@overload
def ack(session: Door, messages: MessageView | Iterable[MessageView], /) -> None: ...
@overload
def ack(session: AsyncDoor, messages: MessageView | Iterable[MessageView], /) -> Awaitable[None]: ...
def ack(session: Door | AsyncDoor, messages: MessageView | Iterable[MessageView], /) -> Awaitable[None] | None:
    """Says that the message, or each of several, is done, as a part of the session's transaction.

    Your writes and the ack are committed together or not at all: exactly once, even if the process dies in between.
    Until your commit nobody else gets the message, however long it takes. Do not ack it with its consumer as well.

    Raises HoldLost when the hold is not current any more: the message is done already, or comes again elsewhere. Raises
    OutOfOrder for a message with an un-acked one before it in its message group. Either leaves the transaction to be
    rolled back. Raises UnsupportedByStore unless the database is the broker's, and Postgres.
    """
    listed = [messages] if isinstance(messages, MessageView) else list(messages)
    return through(session, lambda conn: _ack(conn, listed))


def _ack(conn: Connection, messages: list[MessageView]) -> None:
    require_broker(conn)
    with refusals():
        for message in messages:
            conn.execute(_CALL, {"receipt_handle": message.receipt_handle})


_CALL: Final = text("SELECT popmq_ack(CAST(:receipt_handle AS text))")
