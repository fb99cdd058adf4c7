"""On Postgres a search by time can take one index only.

The indexes of messages and message groups that are READY or open begin with an expression. Indexes that begin with it
too have other conditions, and so has the index of producers, which could be taken for checks that are due.
"""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    _make_index("pending_of_client", "pending (client_id) WHERE kind = 'HALF' AND client_id > ''")
    if op.get_bind().dialect.name == "postgresql":
        _make_index("message_group_first", _FIRST.replace("+ 0", "* 1"))
        _make_index("message_group_open", _OPEN.format(group_id="(group_id + 0)"))
        _make_index("delivery_ready", _READY.format(group_id="(group_id + 0)"))


def downgrade() -> None:
    _make_index("pending_of_client", "pending (client_id) WHERE kind = 'HALF'")
    if op.get_bind().dialect.name == "postgresql":
        _make_index("message_group_first", _FIRST)
        _make_index("message_group_open", _OPEN.format(group_id="group_id"))
        _make_index("delivery_ready", _READY.format(group_id="group_id"))


_FIRST = "message_group_progress ((group_id + 0), (queue_id + 0), (next_offset + 0))"
_OPEN = "message_group_progress ({group_id}, topic_id, subscriber, open_since_ms) WHERE open_since_ms IS NOT NULL"
_READY = "delivery ({group_id}, topic_id, visible_at_ms) WHERE state IN ('READY') AND message_group IS NULL"


def _make_index(name: str, rows: str) -> None:
    op.get_bind().exec_driver_sql(f"DROP INDEX {name}")
    op.get_bind().exec_driver_sql(f"CREATE INDEX {name} ON {rows}")
