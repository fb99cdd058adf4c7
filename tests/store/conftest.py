"""A store per test, once on each database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.open_store import OpenStore, open_store


@pytest.fixture
def store(database_url: str) -> Iterator[OpenStore]:
    with open_store(database_url) as opened:
        yield opened
