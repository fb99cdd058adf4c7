"""A store on each database, brokers and doors, as elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.broker.conftest import broker, either_broker, strict_broker
from tests.rpc.conftest import door, strict_door
from tests.rpc.door import Door, opened
from tests.servers.conftest import servers
from tests.support.stores import postgres_database, store

__all__ = ["broker", "door", "either_broker", "postgres_database", "servers", "store", "strict_broker", "strict_door"]


@pytest.fixture(params=["sqlite", "postgres"])
async def either_door(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Door]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    async with opened(tmp_path, postgres_url=url) as opened_door:
        yield opened_door
