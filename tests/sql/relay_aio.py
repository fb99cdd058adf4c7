"""A program that empties an outbox by asyncio: python -m tests.sql.relay_aio ENDPOINT URL [--once]"""

from __future__ import annotations

import asyncio
import sys

from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from popclient.aio import Producer, Relay


async def main(endpoint: str, url: str, *, once: bool) -> None:
    engine = create_async_engine(make_url(url).set(drivername="sqlite+aiosqlite"))
    async with Producer(endpoint) as producer:
        relay = Relay(engine, producer)
        if once:
            print(f"moved {await relay.run_once()} messages, {await relay.waiting()} wait")
        else:
            await relay.run()
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3], once="--once" in sys.argv))
