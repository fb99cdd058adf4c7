"""What a supervisor makes of what a worker writes, or does not write, before it is ready."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE

import pytest

from popserver.serve.order import Order, Report
from popserver.serve.slots import Worker, WorkerFailed

REPORT = Report({"grpc": "127.0.0.1:8081"}, 30.0)


async def worker_that_writes(line: str) -> Worker:
    """A process that writes this, and stays."""
    code = f"import sys, time; sys.stdout.write({line!r}); sys.stdout.flush(); time.sleep(600)"
    return Worker(1, await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=PIPE, stdout=PIPE))


async def test_a_report() -> None:
    worker = await worker_that_writes(REPORT.line().decode())
    await worker.ready(60.0)
    assert worker.report == REPORT
    worker.end()
    assert await worker.ended() == "killed by SIGTERM"


@pytest.mark.parametrize(
    "line", ["hello\n", "[]\n", "1\n", '{"drain_s": "long"}\n', "x" * 100_000], ids=lambda line: str(line)[:10].strip()
)
async def test_what_is_no_report_fails_the_worker_and_ends_it(line: str) -> None:
    worker = await worker_that_writes(line)
    with pytest.raises(WorkerFailed, match="worker 1 wrote something else than its report, and was killed"):
        await worker.ready(60.0)
    assert await worker.ended() == "killed by SIGKILL"


async def test_one_that_does_not_become_ready_is_killed() -> None:
    worker = await worker_that_writes("")
    with pytest.raises(WorkerFailed, match="worker 1 was not ready within 0 s, and was killed"):
        await worker.ready(0.1)
    assert await worker.ended() == "killed by SIGKILL"


def test_fields_of_a_newer_version_are_left_out() -> None:
    newer = json.loads(REPORT.line()) | {"mood": "good"}
    assert Report.read(json.dumps(newer).encode()) == REPORT
    order = Order(2, {"workers": 2, "http": "off"}, {"clients": [5, 6]}, True)
    assert Order.read(json.dumps(json.loads(order.line()) | {"mood": "good"}).encode()) == order


def test_an_order_of_an_older_version_upgrades_nothing() -> None:
    assert not Order.read(b'{"worker": 1, "settings": {}, "sockets": {}}').upgrades
