"""A broker per test: in memory, and where the database may matter once on each."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.running_broker import RunningBroker, running_broker


@pytest.fixture
async def broker() -> AsyncIterator[RunningBroker]:
    async with running_broker() as running:
        yield running


@pytest.fixture
async def strict_broker() -> AsyncIterator[RunningBroker]:
    """One that makes no topic and no group on the way."""
    async with running_broker(auto_create=False) as running:
        yield running


@pytest.fixture
async def either_broker(database_url: str) -> AsyncIterator[RunningBroker]:
    """On a SQLite file, and on Postgres."""
    async with running_broker(database_url) as running:
        yield running
