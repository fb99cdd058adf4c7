"""A store on each database, and a server over either."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from popserver.engine.clock import ManualClock
from tests.admin.desk import Desk
from tests.admin.desk import opened as opened_desk
from tests.rpc.door import Door, opened
from tests.support.stores import postgres_database, store

__all__ = ["postgres_database", "store"]


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
