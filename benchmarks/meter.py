"""Counts a load's messages in its time window, and the CPU time of both sides."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from benchmarks.machine import cpu_seconds

FIRST_WITHIN_S = 60.0


class Meter:
    """Workers call `done` after each call, and continue while `running`."""

    def __init__(self) -> None:
        self.running = True
        self._messages = 0
        self._all_messages = 0
        self._latencies_s: list[float] = []

    def done(self, messages: int, begun: float) -> None:
        """A call that began at `begun` (perf_counter) had this many messages."""
        self._messages += messages
        self._all_messages += messages
        self._latencies_s.append(time.perf_counter() - begun)

    async def measure(
        self, workers: Sequence[Coroutine[Any, Any, None]], *, warm_up: float, seconds: float, server_pid: int
    ) -> dict[str, Any]:
        """Let the workers work; count after `warm_up` seconds for `seconds`. Raises what a worker raises."""
        tasks = [asyncio.create_task(worker) for worker in workers]
        await _wait(tasks, warm_up)
        self._messages, self._latencies_s = 0, []
        before, begun = (cpu_seconds(server_pid), cpu_seconds(os.getpid())), time.perf_counter()
        await _wait(tasks, seconds)
        while tasks and not self._messages and time.perf_counter() - begun < FIRST_WITHIN_S:
            # The machine is so busy that no call is done yet: there would be no rate, and no ratio to it.
            await _wait(tasks, seconds)
        taken = time.perf_counter() - begun
        messages, latencies = self._messages, self._latencies_s
        after = (cpu_seconds(server_pid), cpu_seconds(os.getpid()))
        self.running = False
        await asyncio.gather(*tasks)
        return {
            "rate": messages / taken,
            "messages": self._all_messages,
            "messages_per_call": messages / max(len(latencies), 1),
            "server_busy": (after[0] - before[0]) / taken,
            "load_busy": (after[1] - before[1]) / taken,
            "server_us_per_message": (after[0] - before[0]) * 1e6 / max(messages, 1),
            "call_ms": quantiles_ms(latencies),
        }


def quantiles_ms(taken_s: Sequence[float]) -> dict[str, float]:
    """Median and 99th percentile, in milliseconds."""
    if not taken_s:
        return {}
    ordered = sorted(taken_s)
    return {name: ordered[min(int(len(ordered) * part), len(ordered) - 1)] * 1e3 for name, part in _QUANTILES.items()}


_QUANTILES = {"p50": 0.5, "p99": 0.99}


async def _wait(tasks: Iterable[asyncio.Task[None]], seconds: float) -> None:
    """Wait this long. Raises the first exception of a task."""
    alarm = asyncio.create_task(asyncio.sleep(seconds))
    done, _ = await asyncio.wait([*tasks, alarm], return_when=asyncio.FIRST_COMPLETED)
    for task in done - {alarm}:
        task.result()
