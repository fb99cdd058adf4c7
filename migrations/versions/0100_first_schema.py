"""The first schema. Every later version of PopMQ upgrades it.

Its number is above those that development versions had.
"""

from __future__ import annotations

from pathlib import Path

from alembic import op
from sqlalchemy import inspect

from popserver.database import migrate

revision = "0100"
down_revision = None


def upgrade() -> None:
    conn = op.get_bind()
    file = Path(__file__).with_name(f"{revision}_{conn.dialect.name}.sql")
    for statement in file.read_text().split("\n;\n"):
        conn.exec_driver_sql(statement, execution_options={"no_parameters": True})
    migrate.functions_create(conn, migrate.script_location() / "functions.sql")


def downgrade() -> None:
    """Drops everything; alembic's own table stays."""
    conn = op.get_bind()
    migrate.functions_drop(conn)
    found = inspect(conn)
    for name in found.get_view_names():
        conn.exec_driver_sql(f"DROP VIEW {name}")
    for name in found.get_table_names():
        if name != "alembic_version":
            conn.exec_driver_sql(f"DROP TABLE {name}")
