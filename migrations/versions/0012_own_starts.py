"""Message groups cost less on Postgres beside a transaction that stays open.

A message group that is not done for long has a start offset of its own, so that its queue's can move on. Looks for
deliveries and positions take the index that is made for them, because no other one has its first expression. And how
often a message was given back is in its delivery's key, so that each time is compared with few old versions.
"""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"

_COLUMNS = (
    "group_id BIGINT NOT NULL, queue_id BIGINT NOT NULL, message_group TEXT NOT NULL, start_offset BIGINT NOT NULL,"
    " CONSTRAINT message_group_start_pk PRIMARY KEY (group_id, queue_id, message_group)"
)
_INDEXES = {
    "delivery_of_group": "ON delivery ({group_id}, topic_id, message_group, message_key)"
    " WHERE message_group IS NOT NULL",
    "message_group_first": "ON message_group_progress ({group_id}, queue_id, next_offset)",
}


def upgrade() -> None:
    without_rowid = " WITHOUT ROWID" if op.get_bind().dialect.name == "sqlite" else ""
    op.get_bind().exec_driver_sql(f"CREATE TABLE message_group_start ({_COLUMNS}){without_rowid}")
    _make_indexes("(group_id + 0)")
    op.get_bind().exec_driver_sql("ALTER TABLE delivery ADD COLUMN uncounted INTEGER DEFAULT '0' NOT NULL")
    _make_key("group_id, message_key, uncounted")
    _on_positions("SET (deduplicate_items = off)")


def downgrade() -> None:
    # The queue's start is beyond these message groups; it moves on again from 0.
    op.get_bind().exec_driver_sql(
        "UPDATE progress SET start_offset = 0"
        " WHERE (group_id, queue_id) IN (SELECT group_id, queue_id FROM message_group_start)"
    )
    op.get_bind().exec_driver_sql("DROP TABLE message_group_start")
    _make_indexes("group_id")
    _on_positions("RESET (deduplicate_items)")
    _make_key("group_id, message_key")
    op.get_bind().exec_driver_sql("ALTER TABLE delivery DROP COLUMN uncounted")


def _make_indexes(group_id: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        for name, columns in _INDEXES.items():
            op.get_bind().exec_driver_sql(f"DROP INDEX {name}")
            op.get_bind().exec_driver_sql(f"CREATE INDEX {name} {columns.format(group_id=group_id)}")


def _make_key(columns: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.get_bind().exec_driver_sql(
            f"ALTER TABLE delivery DROP CONSTRAINT delivery_pk, ADD CONSTRAINT delivery_pk PRIMARY KEY ({columns})"
        )
        op.get_bind().exec_driver_sql("ALTER INDEX delivery_pk SET (deduplicate_items = off)")


def _on_positions(change: str) -> None:
    """Their newest versions are looked for first."""
    if op.get_bind().dialect.name == "postgresql":
        op.get_bind().exec_driver_sql(f"ALTER INDEX message_group_progress_pk {change}")
