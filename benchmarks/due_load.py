"""Load for due times: delayed messages and holds that end, and how late polls get the messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from benchmarks.meter import quantiles_ms
from benchmarks.raw_load import Wire, new_message
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire

T = TypeVar("T")

_SENT_TOGETHER = 100
_RECEIVED_TOGETHER = 32


class DueLoad:
    """Its verbs are the loads `due.…`."""

    def __init__(self, endpoint: str) -> None:
        self._wire = Wire(endpoint)

    async def delay(
        self, topic: str, group: str, rate: int, burst: int, callers: int, body_bytes: int, seconds: float
    ) -> dict[str, Any]:
        """How late messages are that become due while polls wait: `rate` per second, then a burst at one moment."""
        arrived: asyncio.Queue[float] = asyncio.Queue()
        pollers = [asyncio.ensure_future(self._wait_for_delayed(topic, group, arrived)) for _ in range(callers)]
        await asyncio.sleep(0.5)  # until the group is made and the polls are parked
        count, first = int(rate * seconds), time.time_ns()
        begins_ms = first // 1_000_000 + 1_000
        spread = [begins_ms + number * 1_000 // rate for number in range(count)]
        for start in range(0, count, _SENT_TOGETHER):
            await self._send(topic, first + start, spread[start : start + _SENT_TOGETHER], body_bytes)
        late_s = await _arrivals(arrived, count)
        at_once = [time.time_ns() // 1_000_000 + 2_000] * burst
        for start in range(0, burst, _SENT_TOGETHER):
            await self._send(topic, time.time_ns(), at_once[start : start + _SENT_TOGETHER], body_bytes)
        burst_late_s = await _arrivals(arrived, burst)
        await _end(pollers)
        return _figures(late_s, burst_late_s)

    async def hold(
        self,
        topic: str,
        group: str,
        rate: int,
        burst: int,
        callers: int,
        body_bytes: int,
        seconds: float,
        hold_seconds: int,
    ) -> dict[str, Any]:
        """How late messages are delivered again whose holds end while polls wait; numbers as for `delay`.

        A hold counts from the start of its receive call, so the time of that call counts as lateness.
        """
        count, first = int(rate * seconds), time.time_ns()
        for start in range(0, count + burst, _SENT_TOGETHER):
            size = min(_SENT_TOGETHER, count + burst - start)
            await self._send(topic, first + start, [None] * size, body_bytes)
        due_s: dict[str, float] = {}
        begun = time.perf_counter()
        for number in range(count):
            await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
            await self._hold(topic, group, 1, hold_seconds, due_s)
        spread = set(due_s)
        while len(due_s) < count + burst:
            await self._hold(topic, group, _RECEIVED_TOGETHER, hold_seconds, due_s)
        if time.perf_counter() - begun > hold_seconds:
            raise RuntimeError(f"the first of the holds ended before the last of {count + burst} was taken")
        arrived: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
        pollers = [asyncio.ensure_future(self._wait_for_held(topic, group, arrived)) for _ in range(callers)]
        came = await _arrivals(arrived, count + burst)
        await _end(pollers)
        late_s = [at_s - due_s[message_id] for message_id, at_s in came if message_id in spread]
        return _figures(late_s, [at_s - due_s[message_id] for message_id, at_s in came if message_id not in spread])

    async def close(self) -> None:
        await self._wire.channel.close()

    async def _send(self, topic: str, first: int, due_ms: list[int] | list[None], body_bytes: int) -> None:
        sent = [
            new_message(topic, f"01{number:032X}", bytes(body_bytes)) for number in range(first, first + len(due_ms))
        ]
        for each, at_ms in zip(sent, due_ms, strict=True):
            if at_ms is not None:
                due = each.system_properties.delivery_timestamp
                due.seconds, due.nanos = at_ms // 1_000, at_ms % 1_000 * 1_000_000
        await self._wire.send(wire.SendMessageRequest(messages=sent).SerializeToString())

    async def _hold(self, topic: str, group: str, batch_size: int, hold_seconds: int, due_s: dict[str, float]) -> None:
        asked_s = time.time()
        for each in await self._wire.receive(group, topic, batch_size, invisible_s=hold_seconds):
            due_s[each.system_properties.message_id] = asked_s + hold_seconds

    async def _wait_for_delayed(self, topic: str, group: str, arrived: asyncio.Queue[float]) -> None:
        while True:
            received = await self._wire.receive(group, topic)
            now_s = time.time()
            for each in received:
                due = each.system_properties.delivery_timestamp
                arrived.put_nowait(now_s - due.seconds - due.nanos / 1e9)
            await self._ack(topic, group, received)

    async def _wait_for_held(self, topic: str, group: str, arrived: asyncio.Queue[tuple[str, float]]) -> None:
        while True:
            received = await self._wire.receive(group, topic)
            now_s = time.time()
            for each in received:
                arrived.put_nowait((each.system_properties.message_id, now_s))
            await self._ack(topic, group, received)

    async def _ack(self, topic: str, group: str, received: list[pb.Message]) -> None:
        if received:
            await self._wire.ack(group, topic, received)


async def _arrivals(arrived: asyncio.Queue[T], count: int) -> list[T]:
    async with asyncio.timeout(60):
        return [await arrived.get() for _ in range(count)]


async def _end(pollers: Sequence[asyncio.Future[None]]) -> None:
    for poller in pollers:
        poller.cancel()
    await asyncio.gather(*pollers, return_exceptions=True)


def _figures(late_s: list[float], burst_late_s: list[float]) -> dict[str, Any]:
    if min(*late_s, *burst_late_s) < 0:
        raise RuntimeError(f"a message came {-min(*late_s, *burst_late_s) * 1e3:.0f} ms before it was due")
    return {"late_ms": quantiles_ms(late_s), "burst_ms": quantiles_ms(burst_late_s), "max_ms": max(late_s) * 1e3}
