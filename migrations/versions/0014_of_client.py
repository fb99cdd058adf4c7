"""On Postgres no look for a check that is due can take the index of producers."""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    _make_index("kind = 'HALF' AND client_id > ''")


def downgrade() -> None:
    _make_index("kind = 'HALF'")


def _make_index(condition: str) -> None:
    op.get_bind().exec_driver_sql("DROP INDEX pending_of_client")
    op.get_bind().exec_driver_sql(f"CREATE INDEX pending_of_client ON pending (client_id) WHERE {condition}")
