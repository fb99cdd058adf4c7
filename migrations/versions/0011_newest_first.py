"""Indexes of keys keep each version of a row for itself on Postgres, so the newest one can be read first.

A list of versions with one key, which Postgres makes when a page is full, is read from the oldest one on.
"""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"

_INDEXES = ("queue_pkey", "queue_number", "pending_pkey", "progress_pk", "delivery_pk")


def upgrade() -> None:
    _on_each("SET (deduplicate_items = off)")


def downgrade() -> None:
    _on_each("RESET (deduplicate_items)")


def _on_each(change: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        for index in _INDEXES:
            op.get_bind().exec_driver_sql(f"ALTER INDEX {index} {change}")
