"""Groups that own whole queues, at one broker and at several."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.support.running_broker import RunningBroker, running_broker
from tests.support.several_brokers import several_brokers
from tests.support.wire_server import WireServer


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
def wire_server(timed_wire_server: WireServer) -> WireServer:
    return timed_wire_server
