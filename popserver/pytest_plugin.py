"""A broker for your tests: `pop_server` is a new broker in memory for each test; `pop_clock` moves its time.

def test_it_comes_back(pop_server, pop_clock):
    …
    pop_clock.advance("30s")
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from popserver.in_process import EmbeddedBroker, EmbeddedClock


@pytest.fixture
def pop_server() -> Iterator[EmbeddedBroker]:
    """A running broker with a manual clock. Connect to `pop_server.endpoint`."""
    from popserver import embedded

    with embedded(manual_clock=True) as broker:
        yield broker


@pytest.fixture
def pop_clock(pop_server: EmbeddedBroker) -> EmbeddedClock:
    """The broker's clock. Move it with `pop_clock.advance("2h")`."""
    return pop_server.clock
