"""Lite topics beside an ordinary topic on one server: the same messages, requests, clients and options for both.

Sends of 32 messages by 64 callers, and receives of 32 with one ack by 50 clients. Of the 100,000 lite topics each
client has 2,000. A topic with as many message groups is measured as well: its messages are in order too. The server is
on any core, as it is by default.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from benchmarks.bench import Bench
from benchmarks.case import CALLERS, Figures, Rounds
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


class NamedTemplate(SendTemplate):
    """A send request whose message ids are new each time, and whose lite topics or message groups change."""

    def __init__(self, topic: str, names: int, body_bytes: int, *, is_lite: bool) -> None:
        super().__init__(topic, PER_REQUEST, body_bytes)
        request = wire.SendMessageRequest.FromString(bytes(self._bytes))
        for index, each in enumerate(request.messages):
            setattr(each.system_properties, "lite_topic" if is_lite else "message_group", NAME % (900_000 + index))
        self._bytes = bytearray(request.SerializeToString())
        self._places = [self._bytes.index(each.system_properties.message_id.encode()) for each in request.messages]
        self._names = [self._bytes.index((NAME % (900_000 + index)).encode()) for index in range(PER_REQUEST)]
        self._order = list(range(names))
        random.Random(7).shuffle(self._order)
        self._at = 0

    def next(self) -> bytes:
        for place in self._names:
            self._bytes[place : place + 7] = (NAME % self._order[self._at]).encode()
            self._at = (self._at + 1) % len(self._order)
        return super().next()


def lite(bench: Bench) -> Rounds:
    """Messages per second that are received and acked; ratios of that and of sends to the ordinary topic."""
    found: Rounds = {}
    for name in bench.stores:
        with bench.alone(Variant(name, bench.new_url(name, "lite"))) as server:
            found[name] = asyncio.run(_rounds(server.endpoint, bench.plan, partial(_say, bench, name)))
    return found


def _say(bench: Bench, name: str, what: str) -> None:
    bench.say(f"{name}: {what}")


async def _rounds(endpoint: str, plan: Plan, say: Callable[[str], None]) -> list[Figures]:
    link = Wire(endpoint)
    await _create(endpoint)
    templates: dict[str, SendTemplate] = {"plain": SendTemplate("plain", PER_REQUEST, plan.body_bytes)}
    for kind in ("fifo", "lite"):
        templates[kind] = NamedTemplate(kind, plan.lite_topics, plan.body_bytes, is_lite=kind == "lite")
    for kind, template in templates.items():
        say(f"storing messages ({kind})")
        await _sent(link, template, 0, 2 * plan.lite_topics // PER_REQUEST)
    return [await _measured(link, endpoint, templates, plan, number, say) for number in range(plan.rounds)]


async def _measured(
    link: Wire,
    endpoint: str,
    templates: dict[str, SendTemplate],
    plan: Plan,
    number: int,
    say: Callable[[str], None],
) -> Figures:
    say(f"round {number + 1} of {plan.rounds}")
    sent = {kind: await _sent(link, template, plan.seconds) for kind, template in templates.items()}
    began = time.perf_counter()
    await _subscribe(endpoint, f"lite-{number}", plan.lite_topics)
    subscribing_s = time.perf_counter() - began
    got: dict[str, float] = {}
    for kind in templates:
        # The first receive of a group makes its progress.
        await link.receive(f"{kind}-{number}", kind, 1, poll_s=0, client_id="c0", invisible_s=10)
        got[kind] = await _consumed(link, kind, f"{kind}-{number}", plan.seconds)
    return {
        "rate": got["lite"],
        "of_plain": got["lite"] / got["plain"],
        "of_in_order": got["lite"] / got["fifo"],
        "send_rate": sent["lite"],
        "send_of_plain": sent["lite"] / sent["plain"],
        "send_of_in_order": sent["lite"] / sent["fifo"],
        "subscribing_s": subscribing_s,
    }


async def _create(endpoint: str) -> None:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        for name, kind in TYPES.items():
            request = admin.CreateTopicRequest(
                topic=pb.Resource(name=name), queue_count=QUEUES, accept_message_types=[kind]
            )
            answer: Any = await AdminStub(channel).CreateTopic(request, metadata=HEADERS)
            assert answer.status.code == pb.OK, answer.status


async def _sent(link: Wire, template: SendTemplate, seconds: float, requests: int | None = None) -> float:
    """Messages per second; with `requests`, so many in all."""
    began, count = time.perf_counter(), 0

    async def caller() -> None:
        nonlocal count
        while (time.perf_counter() - began < seconds) if requests is None else (count < requests):
            count += 1
            await link.send(template.next())

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return count * PER_REQUEST / (time.perf_counter() - began)


async def _consumed(link: Wire, topic: str, group: str, seconds: float) -> float:
    """Messages per second, received and acked by all clients."""
    began, count = time.perf_counter(), 0

    async def client(number: int) -> None:
        nonlocal count
        while time.perf_counter() - began < seconds:
            got = await link.receive(group, topic, PER_REQUEST, poll_s=1, client_id=f"c{number}")
            if got:
                await link.ack(group, topic, got)
                count += len(got)

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return count / (time.perf_counter() - began)


async def _subscribe(endpoint: str, group: str, lite_topics: int) -> None:
    """Each client subscribes to its share of the lite topics."""
    share = lite_topics // CLIENTS
    async with grpc.aio.insecure_channel(endpoint) as channel:
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
