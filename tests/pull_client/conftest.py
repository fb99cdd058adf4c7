"""A scripted server with queues per test, and a PopMQ server per module."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.queue_server import QueueServer
from tests.support.shared_server import shared, topic

__all__ = ["shared", "topic"]


@pytest.fixture
async def server() -> AsyncIterator[QueueServer]:
    async with QueueServer() as server:
        yield server
