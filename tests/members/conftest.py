"""Groups that own whole queues, at one broker and at several."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from popserver.engine.clock import ManualClock
from tests.support.door import Door, opened
from tests.support.running_broker import RunningBroker, running_broker
from tests.support.several_brokers import SeveralBrokers, several_brokers


@pytest.fixture(params=["sqlite", "postgres"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[tuple[RunningBroker, RunningBroker]]:
    """Two brokers on one Postgres; on SQLite, which has one broker, that one twice. A clock that all share."""
    async with AsyncExitStack() as running:
        if request.param == "sqlite":
            one = await running.enter_async_context(running_broker(request.getfixturevalue("sqlite_url")))
            yield one, one
        else:
            several = await running.enter_async_context(several_brokers(request.getfixturevalue("postgres_url")))
            yield several.a, several.b


@pytest.fixture
async def servers(postgres_url: str) -> AsyncIterator[SeveralBrokers]:
    async with several_brokers(postgres_url) as several:
        yield several


@pytest.fixture(params=["sqlite", "postgres"])
async def door(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Door]:
    """A server on a clock that stands still, over either database."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    async with opened(tmp_path, clock=ManualClock(), postgres_url=url) as opened_door:
        yield opened_door
