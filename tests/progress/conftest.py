"""A store on each database, and a server over either."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.desk import Desk
from tests.support.desk import opened as opened_desk
from tests.support.door import Door


@pytest.fixture
def door(timed_door: Door) -> Door:
    return timed_door


@pytest.fixture
def desk(database_url: str) -> Iterator[Desk]:
    with opened_desk(database_url) as desk:
        yield desk
