"""Where the clocks stood when they were last looked at; exponential intervals of retries."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "clock",
        sa.Column("clock_id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("system_ms", sa.BigInteger(), nullable=False),
        sa.Column("server_ms", sa.BigInteger(), nullable=False),
        sa.Column("doubted_ms", sa.BigInteger(), nullable=False),
        sa.Column("doubt_left_ms", sa.BigInteger(), nullable=False),
        sa.Column("confirmed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("clock_id"),
    )
    op.add_column("server", sa.Column("ahead_ms", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("consumer_group", sa.Column("backoff", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("consumer_group", "backoff")
    op.drop_column("server", "ahead_ms")
    op.drop_table("clock")
