"""A scripted server with queues per test, and a PopMQ server per module."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

import popserver
from tests.support.queue_server import QueueServer


@pytest.fixture
async def server() -> AsyncIterator[QueueServer]:
    async with QueueServer() as server:
        yield server


@pytest.fixture(scope="module")
def shared() -> Iterator[popserver.EmbeddedBroker]:
    with popserver.embedded() as broker:
        yield broker


_names = itertools.count(1)


@pytest.fixture
def topic() -> str:
    """A name of its own per test."""
    return f"flights-{next(_names)}"
