"""The first schema: the tables, views and functions as the code declares them.

Its number is above those of the schemas that 0.1.0 and later development versions had.

A second revision must not change what this one makes. Together with the second revision, replace the two calls below
by the statements that they run at that time; `tests/database/test_migrations.py` fails until that is done.
"""

from __future__ import annotations

from alembic import op

from popserver.database import migrate

revision = "0007"
down_revision = None


def upgrade() -> None:
    migrate.create(op.get_bind())


def downgrade() -> None:
    migrate.drop(op.get_bind())
