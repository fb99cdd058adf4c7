"""On Postgres no look for the position of a message group can take the index of first positions."""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    _make_index("(queue_id + 0), (next_offset + 0)")


def downgrade() -> None:
    _make_index("queue_id, next_offset")


def _make_index(columns: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.get_bind().exec_driver_sql("DROP INDEX message_group_first")
        op.get_bind().exec_driver_sql(
            f"CREATE INDEX message_group_first ON message_group_progress ((group_id + 0), {columns})"
        )
