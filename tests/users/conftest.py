"""A whole server on each database, with a clock that stands still until it is moved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import popserver
from popserver import EmbeddedBroker
from tests.support.builders import START
from tests.users.helpers import Start


@pytest.fixture
def start(database_url: str) -> Start:
    """Start a server; once more, after it has stopped, for a restart."""
    return lambda: popserver.embedded(database_url, manual_clock=START)


@pytest.fixture
def broker(start: Start) -> Iterator[EmbeddedBroker]:
    with start() as running:
        yield running
