"""Members of a group that own whole queues (popclient.aio's QueuePushConsumer), which join and leave."""

from __future__ import annotations

import asyncio
import itertools
import random
import struct
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from benchmarks.meter import quantiles_ms
from popclient._consume.listener import AsyncConcurrentListener, ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus
from popclient._engine.clock import LoopClock
from popclient._queue_push.pull_loop import PullLoop
from popclient.admin import Admin
from popclient.aio import Producer, QueuePushConsumer
from popclient.message import MessageView

LOOK_EVERY_S = 0.005
PATIENCE_S = 60.0
PAUSE_MAX_S = 1.0  # between two changes under load: shorter and longer than the members' pause between two rounds


class MemberLoad:
    """Its verbs are the loads `members.…`."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    async def rebalance(self, topic: str, group: str, members: int, queues: int, changes: int) -> dict[str, Any]:
        """One member joins, the oldest leaves, and so on: the time until each queue has exactly one owner."""
        await self._make_topic(topic, queues)
        present = deque(self._member(topic, group, _nothing) for _ in range(members - 1))
        await asyncio.gather(*(member.start() for member in present))
        await _shared(present, topic, queues)
        taken_s: dict[str, list[float]] = {"join": [], "leave": []}
        for number in range(changes):
            change, begun = "leave" if number % 2 else "join", time.perf_counter()
            if change == "join":
                present.append(self._member(topic, group, _nothing))
                await asyncio.gather(present[-1].start(), _shared(present, topic, queues))
            else:
                await asyncio.gather(present.popleft().close(), _shared(present, topic, queues))
            taken_s[change].append(time.perf_counter() - begun)
        await asyncio.gather(*(member.close() for member in present))
        quantiles = {f"{change}_p50": quantiles_ms(each)["p50"] for change, each in taken_s.items()}
        return quantiles | {"max": max(itertools.chain(*taken_s.values())) * 1e3}

    async def churn(
        self, topic: str, group: str, members: int, queues: int, changes: int, rate: int, body_bytes: int
    ) -> dict[str, Any]:
        """Members join and leave at random moments, while `rate` messages per second are sent.

        A message is lost if no member has consumed it and no member has consumed a new message for a long time.
        """
        await self._make_topic(topic, queues)
        heard = Counter[int]()

        async def listener(messages: Sequence[MessageView], _: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
            heard.update(struct.unpack_from(">q", each.body)[0] for each in messages)
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        present = deque(self._member(topic, group, listener) for _ in range(members - 1))
        await asyncio.gather(*(member.start() for member in present))
        async with Producer(self._endpoint, [topic]) as producer:
            over = asyncio.Event()
            sending = asyncio.create_task(_send(producer, topic, rate, body_bytes, over))
            for number in range(changes):
                await asyncio.sleep(random.uniform(0, PAUSE_MAX_S))
                if number % 2 == 0:
                    present.append(self._member(topic, group, listener))
                    await present[-1].start()
                else:
                    await present.popleft().close()
            over.set()
            sent = await sending
        await _heard_all(heard, sent)
        await asyncio.gather(*(member.close() for member in present))
        figures = {"sent": sent, "lost": sent - len(heard), "changes": changes}
        return figures | {"repeats": heard.total() - len(heard)}

    async def _make_topic(self, topic: str, queues: int) -> None:
        with Admin(self._endpoint) as admin:
            await asyncio.to_thread(admin.create_topic, topic, queue_count=queues)

    def _member(self, topic: str, group: str, listener: AsyncConcurrentListener) -> QueuePushConsumer:
        member = QueuePushConsumer(
            self._endpoint, group, topic, listener, consume_from="CONSUME_FROM_FIRST_OFFSET", drain_timeout=5
        )
        # Consumers of one event loop compute their shares together; real members are on separate machines.
        member._core._pull_loop = PullLoop(LoopClock())
        return member


async def _nothing(_: Sequence[MessageView], __: ConsumeConcurrentlyContext) -> None:
    return


async def _shared(present: Sequence[QueuePushConsumer], topic: str, queues: int) -> None:
    """Wait until each queue has exactly one owner, and the members' numbers of queues differ by at most one."""
    sizes = sorted(len(range(number, queues, len(present))) for number in range(len(present)))
    async with asyncio.timeout(PATIENCE_S):
        while True:
            shares = [{mq.queue_id for mq in each.message_queues if mq.topic == topic} for each in present]
            if sorted(map(len, shares)) == sizes and len(set[int]().union(*shares)) == queues:
                return
            await asyncio.sleep(LOOK_EVERY_S)


async def _send(producer: Producer, topic: str, rate: int, body_bytes: int, over: asyncio.Event) -> int:
    """Send messages at fixed times, without waiting for the ones before. Returns how many were sent."""
    begun, sends = time.perf_counter(), list[asyncio.Future[Any]]()
    while not over.is_set():
        await asyncio.sleep(max(0.0, begun + len(sends) / rate - time.perf_counter()))
        body = struct.pack(">q", len(sends)).ljust(body_bytes, b"\0")
        sends.append(asyncio.ensure_future(producer.send(topic, body)))
    await asyncio.gather(*sends)
    return len(sends)


async def _heard_all(heard: Counter[int], sent: int) -> None:
    """Wait until all messages are consumed, or no new message was consumed for a long time."""
    known, until = len(heard), time.perf_counter() + PATIENCE_S
    while known < sent and time.perf_counter() < until:
        await asyncio.sleep(LOOK_EVERY_S)
        if len(heard) > known:
            known, until = len(heard), time.perf_counter() + PATIENCE_S
