"""A well-behaved client during an attack: it sends, receives and acks at a low rate, and counts lost messages."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable
from typing import Any

import grpc

from benchmarks.raw_load import HEADERS, Refused, Wire, new_message
from popclient._session.transport import authorization
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire

TOPIC = "bench-beside"
INVISIBLE_S = 30
DRAIN_S = 75.0  # longer than a hold whose answer was lost
NEWCOMER_EVERY_S = 1.0
NEWCOMER_TIMEOUT_S = 10


class BesideLoad:
    """The well-behaved client; with a user it signs its calls."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._samples: dict[str, list[tuple[float, float]]] = {}
        self._refused: Counter[str] = Counter()
        self._owed: set[str] = set()  # sent with an OK, and not yet delivered
        self._delivered: set[str] = set()  # some before their OK was seen
        self._next = time.time_ns()

    async def work(
        self, seconds: float, workers: int, rounds_per_s: float, user: tuple[str, str] | None = None
    ) -> dict[str, Any]:
        """Work for this time, then receive what is left. Returns (time.monotonic() at the end, ms) for each call.

        Each worker has its own topic and group. A newcomer is a new connection with one send.
        """
        self._samples = {"send": [], "receive": [], "ack": [], "newcomer": []}
        self._refused.clear()
        self._owed.clear()
        self._delivered.clear()
        headers = HEADERS if user is None else (*HEADERS, *_signature(*user))
        own, until = Wire(self._endpoint, headers=headers), time.monotonic() + seconds
        works = [self._work(own, number, until, 1 / rounds_per_s) for number in range(workers)]
        await asyncio.gather(*works, self._come_new(headers, until))
        drained_until = time.monotonic() + DRAIN_S
        await asyncio.gather(*(self._drain(own, number, drained_until) for number in range(workers)))
        await own.channel.close()
        return {"samples": self._samples, "refused": dict(self._refused), "lost": len(self._owed)}

    async def _work(self, own: Wire, number: int, until: float, pause_s: float) -> None:
        topic, due = f"{TOPIC}-{number}", time.monotonic()
        while (now := time.monotonic()) < until:
            await asyncio.sleep(max(0.0, due - now))
            due = max(due + pause_s, time.monotonic() - pause_s)
            if await self._send(own, "send", topic):
                await self._receive_and_ack(own, topic)

    async def _drain(self, own: Wire, number: int, until: float) -> None:
        topic = f"{TOPIC}-{number}"
        while time.monotonic() < until and any(each.startswith(f"{topic} ") for each in self._owed):
            await self._receive_and_ack(own, topic)

    async def _come_new(self, headers: tuple[tuple[str, str], ...], until: float) -> None:
        while time.monotonic() < until:
            begun, newcomer = time.monotonic(), Wire(self._endpoint, headers=headers)
            await self._send(newcomer, "newcomer", f"{TOPIC}-0", NEWCOMER_TIMEOUT_S)
            await newcomer.channel.close()
            await asyncio.sleep(max(0.0, begun + NEWCOMER_EVERY_S - time.monotonic()))

    async def _send(self, own: Wire, what: str, topic: str, timeout_s: float = 30) -> bool:
        self._next += 1
        message_id = f"01{self._next:032X}"
        request = wire.SendMessageRequest(messages=[new_message(topic, message_id, b"beside")])
        done = await self._timed(what, own.send(request.SerializeToString(), timeout_s))
        if done is not None:
            self._owed |= {f"{topic} {message_id}"} - self._delivered
        return done is not None

    async def _receive_and_ack(self, own: Wire, topic: str) -> None:
        call = own.receive(topic, topic, poll_s=5.0, invisible_s=INVISIBLE_S)
        received: list[pb.Message] = await self._timed("receive", call) or []
        if not received:
            return
        keys = {f"{topic} {each.system_properties.message_id}" for each in received}
        self._delivered |= keys
        self._owed -= keys
        await self._timed("ack", own.ack(topic, topic, received))

    async def _timed(self, what: str, call: Awaitable[Any]) -> Any:
        """The call's answer, or True if it has none; None if it failed, which is counted with its reason."""
        begun = time.monotonic()
        try:
            answer = await call
        except Refused as refusal:
            self._refused[f"{what} {refusal.code}"] += 1
            return None
        except grpc.aio.AioRpcError as error:
            self._refused[f"{what} {error.code().name}"] += 1
            return None
        finally:
            now = time.monotonic()
            self._samples[what].append((now, (now - begun) * 1e3))
        return True if answer is None else answer


def _signature(access_key: str, secret: str) -> tuple[tuple[str, str], ...]:
    date_time = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return (("x-mq-date-time", date_time), ("authorization", authorization(access_key, secret, date_time)))
