"""A store on each database, and a server over either."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from popserver.engine.clock import ManualClock
from tests.support.desk import Desk
from tests.support.desk import opened as opened_desk
from tests.support.door import Door, opened


@pytest.fixture(params=["sqlite", "postgres"])
async def door(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Door]:
    """A server on a clock that stands still, over either database."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    async with opened(tmp_path, clock=ManualClock(), postgres_url=url) as opened_door:
        yield opened_door


@pytest.fixture
def desk(database_url: str) -> Iterator[Desk]:
    with opened_desk(database_url) as desk:
        yield desk
