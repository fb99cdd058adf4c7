"""The first schema.

Its number is above those of the schemas that 0.1.0 and later development versions had.
"""

from __future__ import annotations

from pathlib import Path

from alembic import op
from sqlalchemy import Connection

from popserver.database import migrate

revision = "0007"
down_revision = None

TABLES = """
    acl_policy acl_user client clock consumer_group dead_letter delivery history idempotency keyed_message member
    message message_group_progress pause pending progress queue queue_lock redrive redrive_plan server topic
""".split()
VIEWS = ("message_state", "group_lag", "dead_letters", "lineage", "group_pauses")


def statements(conn: Connection) -> list[str]:
    """The statements that make the tables and views, in order."""
    file = Path(__file__).with_name(f"{revision}_{conn.dialect.name}.sql")
    return file.read_text().split("\n;\n")


def upgrade() -> None:
    conn = op.get_bind()
    for statement in statements(conn):
        conn.exec_driver_sql(statement, execution_options={"no_parameters": True})
    migrate.functions_create(conn, migrate.script_location() / "functions.sql")


def downgrade() -> None:
    conn = op.get_bind()
    migrate.functions_drop(conn)
    for name in reversed(VIEWS):
        conn.exec_driver_sql(f"DROP VIEW {name}")
    for name in TABLES:
        conn.exec_driver_sql(f"DROP TABLE {name}")
