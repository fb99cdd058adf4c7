"""A consumer process of group `arrivals`: `python -m examples.flights.consumer ENDPOINTS`.

A flight that has arrived is acknowledged. One without an arrival time makes the handler fail: it is tried again after
`AGAIN_S`, and the group lets it be tried three times. SIGTERM ends the process in good order.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

from examples.flights.data import TOPIC
from examples.flights.groups import AGAIN_S, ARRIVALS, HOLD_S
from popclient import MessageView, PopError
from popclient.aio import SimpleConsumer

BATCH = 32


class NotArrived(Exception):
    """The flight has no arrival time."""


async def handle(message: MessageView, pause: float) -> None:
    await asyncio.sleep(pause)  # the work
    if json.loads(message.body)["arr_time"] is None:
        raise NotArrived(message.keys)


async def settle(consumer: SimpleConsumer, message: MessageView, pause: float) -> None:
    try:
        await handle(message, pause)
    except NotArrived:
        await consumer.change_invisible_duration(message, AGAIN_S)
    else:
        await consumer.ack(message)


async def main(endpoints: str, pause: float) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with SimpleConsumer(
        endpoints, ARRIVALS, TOPIC, max_messages=BATCH, invisible_duration=HOLD_S, await_duration=5
    ) as consumer:
        print(consumer.client_id, flush=True)
        working = asyncio.create_task(work(consumer, pause))
        await asyncio.wait({working, asyncio.create_task(stopping.wait())}, return_when=asyncio.FIRST_COMPLETED)
        working.cancel()


async def work(consumer: SimpleConsumer, pause: float) -> None:
    while True:
        messages = await consumer.receive()
        outcomes = await asyncio.gather(*(settle(consumer, each, pause) for each in messages), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, PopError):
                print(f"{os.getpid()}: {outcome}", file=sys.stderr)  # its hold ends, and it is delivered again
            elif outcome is not None:
                raise outcome


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
