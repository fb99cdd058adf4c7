"""Queue push consumers on a scripted server, by a clock that tests move."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.queue_client.queue_consumers import QueueConsumers
from tests.support.group_server import GroupServer
from tests.support.shared_server import shared, topic

__all__ = ["shared", "topic"]


@pytest.fixture
async def consumers() -> AsyncIterator[QueueConsumers]:
    async with GroupServer() as server:
        server.widths["t"] = 1
        consumers = QueueConsumers(server)
        yield consumers
        for name in list(server.gates):
            server.gates[name].set()
        await consumers.close()
