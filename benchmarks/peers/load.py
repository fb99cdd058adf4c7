"""The load's process: `python -m benchmarks.peers.load PEER ADDRESS PID …`, in the environment with the clients.

It reads a workload per line and writes its figures per line, both as JSON, like `benchmarks.generator`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from importlib.metadata import version
from typing import Any

from benchmarks.machine import family_cpu_seconds
from benchmarks.peers import loads
from benchmarks.peers.known import known
from benchmarks.peers.peer import Client

# Text, because pgmq has only JSON.
LETTER = b"x"


class PeerLoad:
    """The workloads on one peer; every method takes its options and returns its figures."""

    def __init__(self, client: Client, pids: list[int]) -> None:
        self._client = client
        self._pids = pids

    async def send(self, topic: str, body_bytes: int, callers: int, batch: int, **bounds: Any) -> dict[str, float]:
        await self._client.prepare(topic)
        await self._client.send(topic, LETTER * body_bytes)
        return await loads.send(self._client, self._window(bounds), topic, LETTER * body_bytes, callers, batch)

    async def receive(
        self, topic: str, body_bytes: int, consumers: int, stock: int, stock_seconds: float, **bounds: Any
    ) -> dict[str, float]:
        await self._client.prepare(topic)
        stored = await loads.fill(self._client, topic, LETTER * body_bytes, stock, stock_seconds)
        return await loads.receive(self._client, self._window(bounds), topic, stored, consumers)

    async def latency(self, topic: str, **options: Any) -> dict[str, float]:
        await self._client.prepare(topic)
        return await loads.latency(self._client, topic, **options)

    def _window(self, bounds: dict[str, Any]) -> loads.Window:
        return loads.Window(lambda: family_cpu_seconds(*self._pids), **bounds)


async def _serve(name: str, address: str, pids: list[int]) -> None:
    peer = known()[name]
    async with peer.client(address) as client:
        load = PeerLoad(client, pids)
        print(json.dumps({"client": f"{peer.driven_by} {version(_package(peer.driven_by))}"}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            workload, options = json.loads(line)
            print(json.dumps(await getattr(load, workload)(**options)), flush=True)


def _package(driven_by: str) -> str:
    return "popmq" if driven_by == "popclient" else driven_by


def main(name: str, address: str, *pids: str) -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(name, address, [int(pid) for pid in pids]))
    # gRPC's threads may live longer than the loop; there is nothing left to do.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
