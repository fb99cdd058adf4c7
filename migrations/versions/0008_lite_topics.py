"""Lite topics: their names, who subscribes to them, and whose an open one is."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from alembic import op
from sqlalchemy import Connection

revision = "0008"
down_revision = "0007"

_SQLITE_ONLY = {"sqlite": " WITHOUT ROWID", "postgresql": ""}
_CHANGES = (
    "ALTER TABLE topic ADD COLUMN lite_topics INTEGER DEFAULT '0' NOT NULL",
    "ALTER TABLE topic ADD COLUMN lite_expires_ms BIGINT",
    "ALTER TABLE queue ADD COLUMN lite_expired_offset BIGINT DEFAULT '0' NOT NULL",
    "ALTER TABLE consumer_group ADD COLUMN lite TEXT"
    " CONSTRAINT consumer_group_lite CHECK (lite IN ('SHARED', 'EXCLUSIVE', 'WILDCARD'))",
    "ALTER TABLE message_group_progress ADD COLUMN subscriber TEXT DEFAULT ''",
    "ALTER TABLE message_group_progress ADD COLUMN is_single SMALLINT DEFAULT '0' NOT NULL",
    "DROP INDEX message_group_open",
    "CREATE INDEX message_group_open ON message_group_progress (group_id, topic_id, subscriber, open_since_ms)"
    " WHERE open_since_ms IS NOT NULL",
)
_TABLES = (
    "CREATE TABLE lite_topic (topic_id BIGINT NOT NULL, name TEXT NOT NULL, first_key BIGINT NOT NULL,"
    " created_at_ms BIGINT NOT NULL, CONSTRAINT lite_topic_pk PRIMARY KEY (topic_id, name))",
    "CREATE TABLE lite_client (group_id BIGINT NOT NULL, topic_id BIGINT NOT NULL, client_id TEXT NOT NULL,"
    " synced_at_ms BIGINT NOT NULL, CONSTRAINT lite_client_pk PRIMARY KEY (client_id, group_id, topic_id))",
    "CREATE TABLE lite_subscription (group_id BIGINT NOT NULL, topic_id BIGINT NOT NULL, lite_topic TEXT NOT NULL,"
    " client_id TEXT NOT NULL, queue_id BIGINT NOT NULL, CONSTRAINT lite_subscription_pk"
    " PRIMARY KEY (group_id, topic_id, lite_topic, client_id))",
)
_INDEXES = (
    "CREATE INDEX lite_client_synced ON lite_client (synced_at_ms)",
    "CREATE INDEX lite_subscription_of_client ON lite_subscription (client_id, group_id, topic_id)",
)


def upgrade() -> None:
    conn = op.get_bind()
    _drop_views(conn)
    for statement in _CHANGES:
        conn.exec_driver_sql(statement)
    for table in _TABLES:
        conn.exec_driver_sql(table + _SQLITE_ONLY[conn.dialect.name])
    for statement in _INDEXES:
        conn.exec_driver_sql(statement)
    for view in Path(__file__).with_name(f"{revision}_views.sql").read_text().split("\n;\n"):
        conn.exec_driver_sql(view, execution_options={"no_parameters": True})


def downgrade() -> None:
    conn = op.get_bind()
    _drop_views(conn)
    for name in ("lite_topic", "lite_client", "lite_subscription"):
        conn.exec_driver_sql(f"DROP TABLE {name}")
    conn.exec_driver_sql("DROP INDEX message_group_open")
    for column in ("is_single", "subscriber"):
        conn.exec_driver_sql(f"ALTER TABLE message_group_progress DROP COLUMN {column}")
    conn.exec_driver_sql("ALTER TABLE consumer_group DROP COLUMN lite")
    conn.exec_driver_sql("ALTER TABLE queue DROP COLUMN lite_expired_offset")
    for column in ("lite_expires_ms", "lite_topics"):
        conn.exec_driver_sql(f"ALTER TABLE topic DROP COLUMN {column}")
    before = ("CREATE VIEW ", "CREATE INDEX message_group_open ")
    for statement in _first_schema().statements(conn):
        if statement.startswith(before):
            conn.exec_driver_sql(statement, execution_options={"no_parameters": True})


def _drop_views(conn: Connection) -> None:
    for name in reversed(_first_schema().VIEWS):
        conn.exec_driver_sql(f"DROP VIEW {name}")


def _first_schema() -> Any:
    file = Path(__file__).with_name("0007_first_schema.py")
    spec = importlib.util.spec_from_file_location("first_schema", file)
    assert spec is not None, file
    assert spec.loader is not None, file
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
