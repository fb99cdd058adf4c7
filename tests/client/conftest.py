"""A scripted server per test: in the test's own event loop, or in a thread for synchronous tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.scripted_server import ScriptedServer, ServerThread
from tests.support.shared_server import shared, topic

__all__ = ["shared", "topic"]


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server


@pytest.fixture
def threaded() -> Iterator[ServerThread]:
    with ServerThread() as thread:
        yield thread
