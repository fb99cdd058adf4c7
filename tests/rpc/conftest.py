"""A door per test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.rpc.door import Door, opened


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    async with opened(tmp_path) as opened_door:
        yield opened_door


@pytest.fixture
async def strict_door(tmp_path: Path) -> AsyncIterator[Door]:
    """One that makes no topic and no group on the way."""
    async with opened(tmp_path, auto_create=False) as opened_door:
        yield opened_door
