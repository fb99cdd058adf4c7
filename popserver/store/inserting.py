"""Inserting whole rows, the fastest way each database has."""

from __future__ import annotations

from sqlalchemy import Connection, Table

from popserver.store.dialect import Rows, dialect_of


def insert_rows(conn: Connection, table: Table, rows: Rows) -> None:
    """Insert rows, each with all columns in the table's order, but for a key that the database draws.

    Raises SQLAlchemy's errors, `IntegrityError` too.
    """
    dialect_of(conn).insert(conn, table, rows)
