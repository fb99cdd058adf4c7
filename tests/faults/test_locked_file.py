"""Another program holds the database file's lock: calls are told so in time, and work again when it lets go."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

from popproto.v2 import definition_pb2 as pb
from popserver.sqlite.sessions import BUSY_TIMEOUT_MS
from tests.support.raw_client import assert_says, raw_client
from tests.support.server_process import served

CALLERS = 16


async def test_a_locked_file(tmp_path: Path) -> None:
    file = tmp_path / "popmq.db"
    async with served(f"sqlite:///{file}") as server, raw_client(server.endpoint) as client:
        assert (await client.send("before")).code == pb.OK
        other = sqlite3.connect(str(file), isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        statuses = await asyncio.gather(*(client.send(f"m{number}") for number in range(CALLERS)))
        waited_ms = (time.monotonic() - began) * 1_000
        for status in statuses:
            assert_says(status, "locked by another program", str(file))
        # They wait together: at most one that was on its way, and one batch with all the others.
        assert waited_ms < CALLERS / 2 * BUSY_TIMEOUT_MS
        assert (await client.route()).code == pb.OK
        other.execute("ROLLBACK")
        other.close()
        again = await asyncio.gather(*(client.send(f"m{number}") for number in range(CALLERS)))
        assert {status.code for status in again} == {pb.OK}
        assert set(await client.drain(CALLERS + 1)) == {"before", *(f"m{number}" for number in range(CALLERS))}
