"""The tables that live in the user's database.

Make them once with `metadata.create_all(engine)`, or let Alembic do it: `target_metadata = [Base.metadata, metadata]`.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, SmallInteger, String, Table, Text

metadata = MetaData()

_ID = BigInteger().with_variant(Integer, "sqlite")
_BODY_BYTES_MAX = 4 * 1024 * 1024  # what the broker takes; MySQL chooses its type by it

# Messages on their way to the broker, in the order of their sending. Empty but for what `Relay` has not moved yet.
outbox = Table(
    "popmq_outbox",
    metadata,
    Column("outbox_id", _ID, primary_key=True),
    Column("topic", String(255), nullable=False),
    Column("message_id", String(255), nullable=False),
    Column("tag", Text),
    Column("keys", Text),  # JSON array of strings, NULL for none
    Column("properties", Text),  # JSON object of strings, NULL for none
    Column("message_group", String(63)),
    Column("priority", SmallInteger),
    Column("deliver_at_ms", BigInteger),  # epoch milliseconds
    Column("trace_context", Text),
    Column("written_at_ms", BigInteger, nullable=False),
    Column("refusal", Text),  # why the broker will never take it; set to NULL to have it tried again
    Column("body", LargeBinary(_BODY_BYTES_MAX), nullable=False),
    sqlite_autoincrement=True,  # a reused number would jump the queue
)

# What a consumer group has done already.
processed = Table(
    "popmq_processed",
    metadata,
    Column("consumer_group", String(120), primary_key=True),
    Column("topic", String(255), primary_key=True),
    Column("message_id", String(255), primary_key=True),
    Column("processed_at_ms", BigInteger, nullable=False),  # epoch milliseconds
    Index("popmq_processed_at", "processed_at_ms"),
)
