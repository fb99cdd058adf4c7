"""Brokers for the tests of frameworks, and what they read of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

import popserver
from popclient import NotFound, aio
from popserver import EmbeddedBroker
from tests.support.waiting import eventually

PATIENCE_S = 30


class Counts(NamedTuple):
    """How many messages of a topic are in these states for a group."""

    ready: int = 0
    inflight: int = 0
    waiting_retry: int = 0
    dead_letters: int = 0


async def become(broker: EmbeddedBroker, wanted: Counts, topic: str = "tasks", group: str = "workers") -> None:
    """Returns when it is so."""

    async def are() -> bool:
        with suppress(NotFound):  # the group is made by its first consumer
            for lag in (await admin.get_group(group)).lag:
                if lag.topic == topic:
                    return wanted == (lag.ready, lag.inflight, lag.waiting_retry, lag.dead_letters)
        return False

    async with aio.Admin(broker.endpoint) as admin:
        await eventually(are, str(wanted), within_s=PATIENCE_S)


async def reasons(endpoint: str, group: str = "workers") -> list[str]:
    """Of the group's dead letters."""
    async with aio.Admin(endpoint) as admin:
        return [each.reason async for each in admin.dead_letters(group)]


@pytest.fixture
def timed() -> Iterator[EmbeddedBroker]:
    """A broker on a clock that the test moves."""
    with popserver.embedded(manual_clock=True) as broker:
        yield broker


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker on the machine's clock, whose database is `popmq.db` in `tmp_path`."""
    with popserver.embedded(tmp_path / "popmq.db") as broker:
        yield broker
