"""Where the messages of message groups begin that are not done."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.get_bind().exec_driver_sql("ALTER TABLE progress ADD COLUMN start_offset BIGINT DEFAULT '0' NOT NULL")


def downgrade() -> None:
    op.get_bind().exec_driver_sql("ALTER TABLE progress DROP COLUMN start_offset")
