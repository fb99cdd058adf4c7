"""Where the clocks stood when they were last looked at."""

from __future__ import annotations

import json

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


def downgrade() -> None:
    # Exponential intervals were not known: the usual ladder in their place.
    op.execute(
        sa.text("UPDATE consumer_group SET intervals_ms = :ladder WHERE intervals_ms LIKE '{%'").bindparams(
            ladder=json.dumps(
                [10_000, 30_000, *range(60_000, 660_000, 60_000), 1_200_000, 1_800_000, 3_600_000, 7_200_000]
            )
        )
    )
    op.drop_column("server", "ahead_ms")
    op.drop_table("clock")
