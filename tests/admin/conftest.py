"""A desk per test: in memory, or on each database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.admin.desk import Desk, opened


@pytest.fixture
def desk() -> Iterator[Desk]:
    with opened() as opened_desk:
        yield opened_desk


@pytest.fixture
def stored_desk(database_url: str) -> Iterator[Desk]:
    """Once on a SQLite file, once on Postgres."""
    with opened(database_url) as opened_desk:
        yield opened_desk
