"""Lite topics beside an ordinary topic on one server: the same messages, requests, clients and options for both.

As official clients do it: sends of one message by 64 callers, and receives of 32 with an ack for each message by 50
clients. Then in batches: sends of 32 messages, and receives of 32 with one ack. Of the 100,000 lite topics each client
has 2,000. A topic with as many message groups is measured as well: its messages are in order too. The server is on any
core, as it is by default.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import grpc
import uvloop

from benchmarks.bench import Bench
from benchmarks.case import CALLERS, Figures, Rounds
from benchmarks.machine import cpu_seconds
from benchmarks.plan import Plan
from benchmarks.raw_load import HEADERS, SendTemplate, Wire
from benchmarks.servers import Variant
from popproto.v1 import admin_pb2 as admin
from popproto.v1.admin_pb2_grpc import AdminStub
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popproto.v2.service_pb2_grpc import MessagingServiceStub

CLIENTS = 50
QUEUES = 8
PER_REQUEST = 32
NAME = "t%06d"
TYPES = {"plain": pb.NORMAL, "fifo": pb.FIFO, "lite": pb.LITE}
# What is measured: its name in the figures, and how many messages a send or an ack has.
SENDS = {"send_1": 1, "send_32": PER_REQUEST}
RECEIVES = {"receive_each": 1, "receive_batch": PER_REQUEST}
LITE_FIGURES = tuple(
    operation + figure
    for operation in (*SENDS, *RECEIVES)
    for figure in ("", "_of_plain", "_of_in_order", *(f"_us_{kind}" for kind in TYPES))
)


class Measured(NamedTuple):
    """One kind of topic, one operation: messages per second, and CPU time of the server and of Postgres."""

    rate: float
    cpu_us: float


class NamedTemplate(SendTemplate):
    """A send request whose message ids are new each time, and whose lite topics or message groups change."""

    def __init__(self, topic: str, per_request: int, names: int, body_bytes: int, *, is_lite: bool) -> None:
        super().__init__(topic, per_request, body_bytes)
        request = wire.SendMessageRequest.FromString(bytes(self._bytes))
        for index, each in enumerate(request.messages):
            setattr(each.system_properties, "lite_topic" if is_lite else "message_group", NAME % (900_000 + index))
        self._bytes = bytearray(request.SerializeToString())
        self._places = [self._bytes.index(each.system_properties.message_id.encode()) for each in request.messages]
        self._names = [self._bytes.index((NAME % (900_000 + index)).encode()) for index in range(per_request)]
        self._order = list(range(names))
        random.Random(7).shuffle(self._order)
        self._at = 0

    def next(self) -> bytes:
        for place in self._names:
            self._bytes[place : place + 7] = (NAME % self._order[self._at]).encode()
            self._at = (self._at + 1) % len(self._order)
        return super().next()


def lite(bench: Bench) -> Rounds:
    """Rates with lite topics, as ratios to the other topics too, and CPU times."""
    found: Rounds = {}
    for name in bench.stores:
        with bench.alone(Variant(name, bench.new_url(name, "lite"))) as server:
            say = partial(_say, bench, name)

            def cpu_s(pid: int = server.pid, is_postgres: bool = name == "postgres") -> float:
                return cpu_seconds(pid) + (bench.postgres_cpu_s() if is_postgres else 0.0)

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                found[name] = runner.run(_rounds(server.endpoint, bench.plan, cpu_s, say))
    return found


def lite_remarks(figures: Mapping[str, Any]) -> list[str]:
    """What the table says of such figures."""
    return [
        f"{operation} {figures[operation]:,.0f}/s, {figures[f'{operation}_of_plain']:.2f} of an ordinary topic and"
        f" {figures[f'{operation}_of_in_order']:.2f} of message groups, CPU µs "
        + " / ".join(f"{kind} {figures[f'{operation}_us_{kind}']:.0f}" for kind in TYPES)
        for operation in (*SENDS, *RECEIVES)
        if f"{operation}_of_in_order" in figures
    ]


def _say(bench: Bench, name: str, what: str) -> None:
    bench.say(f"{name}: {what}")


async def _rounds(endpoint: str, plan: Plan, cpu_s: Callable[[], float], say: Callable[[str], None]) -> list[Figures]:
    load = _Load(endpoint, plan, cpu_s)
    await load.create()
    for kind in TYPES:
        say(f"storing messages ({kind})")
        await load.store(kind, 2 * plan.lite_topics)
    return [await _measured(load, number, say) for number in range(plan.rounds)]


async def _measured(load: _Load, number: int, say: Callable[[str], None]) -> Figures:
    say(f"round {number + 1} of {load.plan.rounds}")
    found: dict[str, dict[str, Measured]] = {}
    for what, per_request in SENDS.items():
        found[what] = {kind: await load.send(kind, per_request) for kind in TYPES}
    began = time.perf_counter()
    await load.subscribe(f"lite-{number}")
    figures: Figures = {"subscribing_s": time.perf_counter() - began}
    for what, per_ack in RECEIVES.items():
        found[what] = {kind: await load.consume(kind, f"{kind}-{number}", per_ack) for kind in TYPES}
    for what, by_kind in found.items():
        rate = by_kind["lite"].rate
        figures[what] = rate
        figures[f"{what}_of_plain"] = rate / by_kind["plain"].rate
        figures[f"{what}_of_in_order"] = rate / by_kind["fifo"].rate
        figures |= {f"{what}_us_{kind}": each.cpu_us for kind, each in by_kind.items()}
    return figures


class _Load:
    """All callers and clients, in this process."""

    def __init__(self, endpoint: str, plan: Plan, cpu_s: Callable[[], float]) -> None:
        self.plan = plan
        self._endpoint = endpoint
        self._cpu_s = cpu_s
        self._wire = Wire(endpoint)
        names, size = plan.lite_topics, plan.body_bytes
        self._templates: dict[tuple[str, int], SendTemplate] = {}
        for each in SENDS.values():
            self._templates["plain", each] = SendTemplate("plain", each, size)
            self._templates["fifo", each] = NamedTemplate("fifo", each, names, size, is_lite=False)
            self._templates["lite", each] = NamedTemplate("lite", each, names, size, is_lite=True)

    async def create(self) -> None:
        async with grpc.aio.insecure_channel(self._endpoint) as channel:
            for name, kind in TYPES.items():
                request = admin.CreateTopicRequest(
                    topic=pb.Resource(name=name), queue_count=QUEUES, accept_message_types=[kind]
                )
                answer: Any = await AdminStub(channel).CreateTopic(request, metadata=HEADERS)
                assert answer.status.code == pb.OK, answer.status

    async def store(self, kind: str, messages: int) -> None:
        requests = repeat(self._templates[kind, PER_REQUEST], messages // PER_REQUEST)

        async def caller() -> None:
            for template in requests:
                await self._wire.send(template.next())

        await asyncio.gather(*(caller() for _ in range(CALLERS)))

    async def send(self, kind: str, per_request: int) -> Measured:
        template = self._templates[kind, per_request]

        async def request(_: int) -> int:
            await self._wire.send(template.next())
            return per_request

        return await self._measure(CALLERS, request)

    async def consume(self, topic: str, group: str, per_ack: int) -> Measured:
        """All clients receive, and ack so many messages with one request."""
        # The first receive of a group makes its progress.
        await self._wire.receive(group, topic, 1, poll_s=0, client_id="c0", invisible_s=10)

        async def request(client: int) -> int:
            got = await self._wire.receive(group, topic, PER_REQUEST, poll_s=1, client_id=f"c{client}")
            acks = [got[start : start + per_ack] for start in range(0, len(got), per_ack)]
            await asyncio.gather(*(self._wire.ack(group, topic, each) for each in acks))
            return len(got)

        return await self._measure(CLIENTS, request)

    async def _measure(self, callers: int, request: Callable[[int], Awaitable[int]]) -> Measured:
        """Closed loop: `request` gets the number of its caller, and returns how many messages it was about."""
        began, cpu_s, count = time.perf_counter(), self._cpu_s(), 0

        async def caller(number: int) -> None:
            nonlocal count
            while time.perf_counter() - began < self.plan.seconds:
                done = await request(number)  # not in the addition: it would read `count` before the await
                count += done

        await asyncio.gather(*(caller(number) for number in range(callers)))
        taken_s, cpu_s = time.perf_counter() - began, self._cpu_s() - cpu_s
        return Measured(count / taken_s, cpu_s * 1e6 / max(count, 1))

    async def subscribe(self, group: str) -> None:
        """Each client subscribes to its share of the lite topics."""
        share = self.plan.lite_topics // CLIENTS
        async with grpc.aio.insecure_channel(self._endpoint) as channel:
            stub = MessagingServiceStub(channel)
            for number in range(CLIENTS):
                request = wire.SyncLiteSubscriptionRequest(
                    action=pb.COMPLETE_ADD,
                    topic=pb.Resource(name="lite"),
                    group=pb.Resource(name=group),
                    lite_topic_set=[NAME % each for each in range(number * share, (number + 1) * share)],
                )
                metadata = (("x-mq-client-id", f"c{number}"), *HEADERS[1:])
                answer: Any = await stub.SyncLiteSubscription(request, metadata=metadata)
                assert answer.status.code == pb.OK, answer.status
