"""The SQL functions of a Postgres store: what a user's own transaction may call (`popmq_enqueue`, `popmq_ack`).

Their text is `functions.sql` beside the migrations; its limits, states and names are filled in here, from the same
constants that the server uses. SQLite has none: its one writer is the broker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import Connection

from popserver.domain import idempotency, message, names
from popserver.domain.delivery import ACKED, Event, State, sources, target
from popserver.domain.group import HistoryLevel
from popserver.domain.message import BodyEncoding, MessageType
from popserver.domain.pending import TIME_MS_MAX, PendingKind
from popserver.domain.receipt import VERSIONS
from popserver.store import notices
from popserver.store.dialect import dialect_of

NAMES = ("popmq_enqueue", "popmq_ack")


def create(conn: Connection, text: Path) -> None:
    """Make the functions of the file in the schema the tables are made in; nothing where no other program writes."""
    if dialect_of(conn).has_other_writers:
        schema = conn.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
        # Without parameters: the text is full of percent signs.
        unread = {"no_parameters": True}
        conn.exec_driver_sql(render(text.read_text(), schema), execution_options=unread)


def drop(conn: Connection) -> None:
    """Drop the functions."""
    if dialect_of(conn).has_other_writers:
        for name in NAMES:
            conn.exec_driver_sql(f"DROP FUNCTION {name}")


def render(text: str, schema: str) -> str:
    """The text with its values: `schema` as it is, every other one as an SQL literal; raises `KeyError` for a word that
    has none."""
    values = {"schema": schema} | {name: _literal(value) for name, value in VALUES.items()}
    return _WORD.sub(lambda found: values[found[1]], text)


def _literal(value: int | str | Iterable[int | str]) -> str:
    """An SQL literal, or several with commas."""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return ", ".join(map(_literal, sorted(value)))


_WORD = re.compile(r"(?<!:):([a-z_]+)")
VALUES: dict[str, int | str | Iterable[int | str]] = {
    # The law.
    "held": sources(Event.ACK_IN_TRANSACTION),
    "acked": ACKED,
    "acked_in_transaction": target(Event.ACK_IN_TRANSACTION),
    "ack": Event.ACK,
    "inflight": State.INFLIGHT,
    "commit": target(Event.ACK),
    "history_all": HistoryLevel.ALL,
    "handle_versions": VERSIONS,
    # What a message may be.
    "type_normal": MessageType.NORMAL,
    "type_fifo": MessageType.FIFO,
    "type_delay": MessageType.DELAY,
    "type_priority": MessageType.PRIORITY,
    "body_identity": BodyEncoding.IDENTITY,
    "pending_delay": PendingKind.DELAY,
    "body_bytes_max": message.BODY_BYTES_MAX,
    "message_id_length_max": message.MESSAGE_ID_LENGTH_MAX,
    "message_group_bytes_max": message.MESSAGE_GROUP_BYTES_MAX,
    "priority_max": message.PRIORITY_MAX,
    "properties_max": message.PROPERTIES_MAX,
    "properties_bytes_max": message.PROPERTIES_BYTES_MAX,
    "reserved_properties": message.RESERVED_PROPERTIES,
    "time_ms_max": TIME_MS_MAX,
    "idempotency_property": idempotency.PROPERTY,
    "idempotency_bytes_max": idempotency.KEY_BYTES_MAX,
    "dlq_prefix": names.DLQ_PREFIX,
    "retry_prefix": names.RETRY_PREFIX,
    # Whom to tell.
    "channel": notices.CHANNEL,
    "signal_due": notices.DUE,
    "signal_pending": notices.PENDING,
}
