"""Points of the charts of groups and topics, and the alerts of which a webhook is told."""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"

_POINTS = (
    "CREATE TABLE chart_point (step_s INTEGER NOT NULL, slot INTEGER NOT NULL, kind TEXT NOT NULL,"
    " owner_id BIGINT NOT NULL, at_ms BIGINT NOT NULL, appended BIGINT, done BIGINT, ready BIGINT, inflight BIGINT,"
    " waiting_retry BIGINT, oldest_age_ms BIGINT, delivered BIGINT DEFAULT '0' NOT NULL,"
    " delay_ms BIGINT DEFAULT '0' NOT NULL, slow_ms BIGINT DEFAULT '0' NOT NULL,"
    " CONSTRAINT chart_point_kind CHECK (kind IN ('GROUP', 'TOPIC')),"
    " CONSTRAINT chart_point_pk PRIMARY KEY (step_s, slot, kind, owner_id))"
)
_ALERTS = (
    "CREATE TABLE alert ({alert_id}, alert_key TEXT NOT NULL, kind TEXT NOT NULL, namespace TEXT NOT NULL,"
    " subject TEXT NOT NULL, sentence TEXT NOT NULL, next_step TEXT NOT NULL, page TEXT NOT NULL,"
    " began_at_ms BIGINT NOT NULL, ended_at_ms BIGINT, told SMALLINT DEFAULT '0' NOT NULL,"
    " failure TEXT DEFAULT '' NOT NULL{key})"
)
_ON_SQLITE = {"alert_id": "alert_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT", "key": ""}
_ON_POSTGRES = {"alert_id": "alert_id BIGSERIAL NOT NULL", "key": ", PRIMARY KEY (alert_id)"}
_OPEN = "CREATE UNIQUE INDEX alert_open ON alert (alert_key) WHERE ended_at_ms IS NULL"


def upgrade() -> None:
    conn = op.get_bind()
    is_sqlite = conn.dialect.name == "sqlite"
    conn.exec_driver_sql(_POINTS + (" WITHOUT ROWID" if is_sqlite else " WITH (fillfactor='70')"))
    conn.exec_driver_sql(_ALERTS.format(**(_ON_SQLITE if is_sqlite else _ON_POSTGRES)))
    conn.exec_driver_sql(_OPEN)


def downgrade() -> None:
    op.get_bind().exec_driver_sql("DROP TABLE alert")
    op.get_bind().exec_driver_sql("DROP TABLE chart_point")
