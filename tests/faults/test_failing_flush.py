"""The disk refuses to flush now and then: what was answered OK is kept all the same, and the server goes on.

After a failed flush nobody knows what the disk holds, so the request gets no OK, and the file is opened anew.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess

import pytest

from tests.support.checker import Outcome, Send, check
from tests.support.final_state import final, looking
from tests.support.server_process import served
from tests.support.waiting import eventually
from tests.support.workload import Load

# The hundredth flush fails, and every fortieth after it. The tracer hides behind the server, which stays our child.
TRACED = "-D -f -qq --seccomp-bpf -o /dev/null -e trace=fsync,fdatasync"
FAILING = [*TRACED.split(), "-e", "inject=fsync,fdatasync:error=EIO:when=100+40"]
FAILURES = 3


async def test_flushes_that_fail(sqlite_url: str) -> None:
    under = _failing_flushes()
    load = Load("orders", ["billing"], producers=2, consumers=1, seed=1)
    async with served(sqlite_url, "--min-invisible", "0s", under=under) as server:
        working = asyncio.create_task(load.run(server.endpoint))

        async def has_met_enough() -> bool:
            sends = [call for call in load.history.calls if isinstance(call, Send)]
            failed_ms = {call.invoked_ms for call in sends if call.outcome is Outcome.UNKNOWN}
            return len(failed_ms) >= FAILURES and sends[-1].outcome is Outcome.OK

        await eventually(has_met_enough, "a few failed flushes and an OK after them", within_s=60)
        load.stop()
        assert await server.stop() == 0
        await working
    with looking(sqlite_url) as conn:
        left = final(conn, load.topic)
    left.drained = False
    assert check(load.history, left) == []


def _failing_flushes() -> list[str]:
    tracer = shutil.which("strace")
    if tracer is None:
        pytest.skip("strace, which makes flushes fail, is not installed: apt-get install strace")
    tried = subprocess.run([tracer, *FAILING, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"strace may not trace here: {tried.stderr.strip()}")
    return [tracer, *FAILING]
