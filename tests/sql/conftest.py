"""A broker on Postgres, and a user who works in the same database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, make_url, text

import popserver
from popserver import EmbeddedBroker


@pytest.fixture
def broker(postgres_url: str) -> Iterator[EmbeddedBroker]:
    with popserver.embedded(postgres_url, min_invisible="100ms", durability="relaxed") as running:
        yield running


@pytest.fixture
def user(postgres_url: str) -> Iterator[Engine]:
    """The user's own way into the database, with a table of his."""
    engine = create_engine(make_url(postgres_url).set(drivername="postgresql+psycopg"))
    with engine.begin() as conn:
        conn.execute(text("CREATE TABLE orders (number INTEGER)"))
    yield engine
    engine.dispose()
