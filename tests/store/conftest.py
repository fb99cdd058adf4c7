"""A store per test, once on each database."""

from __future__ import annotations

from tests.support.stores import postgres_database, store

__all__ = ["postgres_database", "store"]
