"""Official clients of several workers on one port: all are replaced, and one is killed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from tests.interop.official import Start
from tests.interop.seen import until
from tests.interop.traffic import Traffic
from tests.support.workers import workers

BETWEEN = 30


async def test_producers_and_simple_consumers_go_on(start_at: Start, postgres_url: str) -> None:
    async with workers(postgres_url, 2, "--min-invisible", "1s", "--tls", "plaintext") as server:
        program = start_at("python", server.endpoint)
        traffic = Traffic(program.producer("flights"), program.simple("counters", "flights", await_s=5))
        with traffic:
            await _eventually(lambda: traffic.passed > BETWEEN)
            await server.reload()
            before = traffic.passed
            await _eventually(lambda: traffic.passed > before + BETWEEN)
            server.kill_worker(random.choice(list(server.running())))
            await server.logged("worker ended")
            again = traffic.passed
            await _eventually(lambda: traffic.passed > again + BETWEEN)
            traffic.send_no_more()
            await _eventually(lambda: traffic.sent <= traffic.acked | traffic.in_doubt)
        assert traffic.came_back == []


async def _eventually(is_so: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, is_so)
