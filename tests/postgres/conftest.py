"""Ports at which nobody listens, and two Postgres."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.postgres import PostgresServer, _free_port, postgres_server


@pytest.fixture
def closed_port() -> int:
    return _free_port()


@pytest.fixture
def other_closed_port() -> int:
    return _free_port()


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    with postgres_server(own=True) as server:
        yield server


@pytest.fixture
def other_postgres() -> Iterator[PostgresServer]:
    with postgres_server(own=True) as server:
        yield server
