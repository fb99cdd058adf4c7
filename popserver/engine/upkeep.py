"""Statements for many tables: remove the rows of deleted topics and groups, and make times earlier."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Text, Update, bindparam, case, delete, select, update

from popserver.database.rows import encode_column, rows_parameter
from popserver.engine.transaction import STEP_ROWS_MAX


def remove_step(conn: Connection, key: Column[Any], *conditions: ColumnElement[bool]) -> int:
    """Remove at most `STEP_ROWS_MAX` rows of the key's table that meet the conditions; returns how many.

    Keys are read first, because Postgres may repeat a query with a LIMIT for each row.
    """
    keys = conn.execute(select(key).where(*conditions).limit(STEP_ROWS_MAX)).scalars().all()
    if not keys:
        return 0
    these = select((_NAMES if isinstance(key.type, Text) else _KEYS).c.key)
    removed = delete(key.table).where(*conditions, key.in_(these))
    return conn.execute(removed, {"keys": encode_column(keys)}).rowcount


def sooner(column: Column[Any], *only: ColumnElement[bool], ready: ColumnElement[bool] | None = None) -> Update:
    """A statement that makes times after `:now_ms` earlier by `:by_ms`, but not earlier than now.

    `ready`: rows whose time becomes now in any case.
    """
    now_ms = bindparam("now_ms", type_=column.type)
    moved = column - bindparam("by_ms")
    is_now = moved < now_ms if ready is None else ready | (moved < now_ms)
    return update(column.table).where(column > now_ms, *only).values({column: case((is_now, now_ms), else_=moved)})


_KEYS = rows_parameter("keys", "key")
_NAMES = rows_parameter("keys", text=("key",))
