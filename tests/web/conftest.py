"""A whole server with its HTTP port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from popserver.app import App
from popserver.config import GivenConfig


@asynccontextmanager
async def started(database_url: str, **options: Any) -> AsyncIterator[App]:
    """A server with HTTP on a free port."""
    given = {"http": "127.0.0.1:0", "port": 0, "tls": "plaintext", "drain_timeout": 1_000, **options}
    app = App(GivenConfig(database_url=database_url, **given))
    await app.start()
    try:
        yield app
    finally:
        await app.stop()


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[App]:
    """A server on a SQLite file, with HTTP on a free port."""
    async with started(f"sqlite:///{tmp_path / 'popmq.db'}") as app:
        yield app
