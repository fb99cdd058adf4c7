"""A broker with a topic of lite topics, once on each database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.lite_broker import LiteBroker, lite_broker


@pytest.fixture
async def lite(database_url: str) -> AsyncIterator[LiteBroker]:
    async with lite_broker(database_url) as running:
        yield running
