"""The SQL functions of a Postgres store: what a user's own transaction may call (`popmq_enqueue`, `popmq_ack`).

Their text stands beside the migrations. SQLite has none: its one writer is the broker.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection

from popserver.store.dialect import dialect_of


def create(conn: Connection, text: Path) -> None:
    """Make the functions of the file in the schema the tables are made in; nothing where no other program writes."""
    if dialect_of(conn).has_other_writers:
        schema = conn.exec_driver_sql("SELECT quote_ident(current_schema())").scalar_one()
        # Without parameters: the text is full of percent signs.
        unread = {"no_parameters": True}
        conn.exec_driver_sql(text.read_text().replace(":schema", schema), execution_options=unread)


def drop(conn: Connection) -> None:
    """Drop the functions."""
    if dialect_of(conn).has_other_writers:
        for name in ("popmq_enqueue", "popmq_ack"):
            conn.exec_driver_sql(f"DROP FUNCTION {name}")
