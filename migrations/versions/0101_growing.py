"""The record of the processes that hand messages over between servers, topics that are closed for producers, and
servers that hand their clients over before they stop."""

from __future__ import annotations

from alembic import op

revision = "0101"
down_revision = "0100"

_MIRROR = (
    "CREATE TABLE mirror (mirror_id TEXT NOT NULL, source TEXT NOT NULL, target TEXT NOT NULL,"
    " namespace TEXT NOT NULL, topic TEXT NOT NULL, consumer_group TEXT NOT NULL, owner TEXT NOT NULL,"
    " host TEXT NOT NULL, lease_until_ms BIGINT NOT NULL, state TEXT NOT NULL, sentence TEXT NOT NULL,"
    " position TEXT NOT NULL, handed BIGINT NOT NULL, repeated BIGINT NOT NULL, dead_letters BIGINT NOT NULL,"
    " scheduled BIGINT NOT NULL, bytes BIGINT NOT NULL, lag BIGINT NOT NULL, started_at_ms BIGINT NOT NULL,"
    " updated_at_ms BIGINT NOT NULL, PRIMARY KEY (mirror_id),"
    " CONSTRAINT mirror_state CHECK (state IN ('RUNNING', 'HELD', 'STOPPED', 'DONE')))"
)


def upgrade() -> None:
    bind = op.get_bind()
    bind.exec_driver_sql(_MIRROR)
    bind.exec_driver_sql("ALTER TABLE topic ADD COLUMN closed_because TEXT")
    bind.exec_driver_sql("ALTER TABLE queue ADD COLUMN closed_at_ms BIGINT")
    bind.exec_driver_sql("ALTER TABLE server ADD COLUMN leaves SMALLINT DEFAULT '0' NOT NULL")


def downgrade() -> None:
    bind = op.get_bind()
    bind.exec_driver_sql("ALTER TABLE server DROP COLUMN leaves")
    bind.exec_driver_sql("ALTER TABLE queue DROP COLUMN closed_at_ms")
    bind.exec_driver_sql("ALTER TABLE topic DROP COLUMN closed_because")
    bind.exec_driver_sql("DROP TABLE mirror")
