"""A push consumer in a process of its own, where nothing else moves the memory: prints what it had and how it grew."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from popclient import ConsumeResult, MessageView, aio


async def consume(endpoint: str, count: int, bound: int) -> dict[str, int]:
    """The most body bytes it had in hand, and the bytes by which it grew from its first message to its last."""
    done, most, before = 0, 0, 0
    finished = asyncio.Event()

    async def listener(_: MessageView) -> ConsumeResult:
        nonlocal done, most, before
        if done == 0:
            before = resident_bytes()
        done += 1
        most = max(most, consumer.cached.bytes)
        if done == count:
            finished.set()
        await asyncio.sleep(0)
        return ConsumeResult.SUCCESS

    consumer = aio.PushConsumer(endpoint, "g", "t", listener, max_cached_bytes=bound, concurrency=2)
    async with consumer:
        await finished.wait()
    return {"most": most, "grown": resident_bytes() - before}


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


if __name__ == "__main__":
    print(json.dumps(asyncio.run(consume(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))
