"""A broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import popserver
from popserver import EmbeddedBroker


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with popserver.embedded(min_invisible="1s") as running:
        yield running
