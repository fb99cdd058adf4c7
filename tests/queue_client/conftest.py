"""Queue push consumers on a scripted server, by a clock that tests move."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.group_server import GroupServer
from tests.support.queue_consumers import Desk
from tests.support.shared_server import shared, topic

__all__ = ["shared", "topic"]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with GroupServer() as server:
        server.widths["t"] = 1
        desk = Desk(server)
        yield desk
        for name in list(server.gates):
            server.gates[name].set()
        await desk.close()
