"""`kill -9` of the server at random moments under load: nothing acknowledged is lost, nothing acked comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.crash_loop import survive
from tests.support.server_process import ServerProcess
from tests.support.workload import Load


@pytest.mark.timeout(540)
@pytest.mark.row("O1")
async def test_ten_kills(database_url: str, tmp_path: Path) -> None:
    await survive(database_url, tmp_path, _kill, rounds=10)


@pytest.mark.slow
@pytest.mark.timeout(5_400)
async def test_two_hundred_kills(database_url: str, tmp_path: Path) -> None:
    await survive(database_url, tmp_path, _kill, rounds=200)


async def _kill(server: ServerProcess, _load: Load) -> None:
    await server.kill()
