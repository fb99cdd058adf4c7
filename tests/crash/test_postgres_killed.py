"""`kill -9` of Postgres under a running server: it says so, goes on by itself, and keeps every promise."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.crash.crash_loop import survive
from tests.support.checker import Call, Outcome, Receive, Send
from tests.support.postgres import PostgresServer, fresh_database, postgres_server
from tests.support.server_process import ServerProcess
from tests.support.waiting import eventually
from tests.support.workload import Load

RECOVERY_S = 60.0


@pytest.mark.timeout(540)
async def test_three_kills(tmp_path: Path) -> None:
    await _survive(tmp_path, rounds=3)


@pytest.mark.slow
@pytest.mark.timeout(5_400)
async def test_fifty_kills(tmp_path: Path) -> None:
    await _survive(tmp_path, rounds=50)


async def _survive(folder: Path, *, rounds: int) -> None:
    with postgres_server(own=True, durable=True) as postgres, fresh_database(postgres) as url:
        await survive(url, folder, lambda server, load: _kill(postgres, server, load), rounds=rounds)


async def _kill(postgres: PostgresServer, server: ServerProcess, load: Load) -> None:
    """Postgres is back at once; the server must be within seconds, and be the same process."""
    await asyncio.to_thread(postgres.kill)
    await _next_call(load, Send, Outcome.UNKNOWN)
    await asyncio.to_thread(postgres.restart)
    await _next_call(load, Send, Outcome.OK)
    await _next_call(load, Receive, Outcome.OK)
    assert server.is_running


async def _next_call(load: Load, kind: type[Call], outcome: Outcome) -> None:
    """Wait for a call of that kind to end so."""
    known = len(load.history.calls)

    async def made() -> bool:
        return any(isinstance(call, kind) and call.outcome is outcome for call in load.history.calls[known:])

    await eventually(made, f"a {kind.__name__} that is {outcome}", within_s=RECOVERY_S)
