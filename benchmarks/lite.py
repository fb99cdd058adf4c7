"""Lite topics beside an ordinary topic, on one server: python -m benchmarks.lite [--postgres URL] [--rounds N]

Sends of 32 messages by 64 callers, and receives of 32 with one ack by 50 clients. In the lite topics each client has
2,000 of 100,000. The two are measured in turns; the figures are the rates of each round, and lite of plain.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc

from benchmarks.raw_load import HEADERS, SendTemplate, Wire
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popproto.v2.service_pb2_grpc import MessagingServiceStub

LITE_TOPICS = 100_000
CLIENTS = 50
CALLERS = 64
PER_REQUEST = 32
NAME = "t%06d"
_numbers = itertools.count()


class LiteTemplate(SendTemplate):
    """A send request whose message ids and lite topics are new each time."""

    def __init__(self, topic: str, body_bytes: int) -> None:
        super().__init__(topic, PER_REQUEST, body_bytes)
        request = wire.SendMessageRequest.FromString(bytes(self._bytes))
        for index, each in enumerate(request.messages):
            each.system_properties.lite_topic = NAME % (900_000 + index)
        self._bytes = bytearray(request.SerializeToString())
        self._places = [self._bytes.index(each.system_properties.message_id.encode()) for each in request.messages]
        self._names = [self._bytes.index((NAME % (900_000 + index)).encode()) for index in range(PER_REQUEST)]
        self._order = list(range(LITE_TOPICS))
        random.Random(7).shuffle(self._order)
        self._at = 0

    def next(self) -> bytes:
        for place in self._names:
            self._bytes[place : place + 7] = (NAME % self._order[self._at]).encode()
            self._at = (self._at + 1) % LITE_TOPICS
        return super().next()


async def sent(link: Wire, template: SendTemplate, seconds: float, requests: int | None = None) -> float:
    """Messages per second; with `requests`, so many in all."""
    began, count = time.perf_counter(), 0

    async def caller() -> None:
        nonlocal count
        while (time.perf_counter() - began < seconds) if requests is None else (count < requests):
            count += 1
            await link.send(template.next())

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return count * PER_REQUEST / (time.perf_counter() - began)


async def consumed(link: Wire, topic: str, group: str, seconds: float) -> float:
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


async def subscribe(endpoint: str, topic: str, group: str) -> float:
    """Each client subscribes to its share of the lite topics; how long that took, in seconds."""
    began, share = time.perf_counter(), LITE_TOPICS // CLIENTS
    async with grpc.aio.insecure_channel(endpoint) as channel:
        stub = MessagingServiceStub(channel)
        for number in range(CLIENTS):
            names = [NAME % each for each in range(number * share, (number + 1) * share)]
            request = wire.SyncLiteSubscriptionRequest(
                action=pb.COMPLETE_ADD,
                topic=pb.Resource(name=topic),
                group=pb.Resource(name=group),
                lite_topic_set=names,
            )
            metadata = (("x-mq-client-id", f"c{number}"), *HEADERS[1:])
            answer: Any = await stub.SyncLiteSubscription(request, metadata=metadata)
            assert answer.status.code == pb.OK, answer.status
    return time.perf_counter() - began


async def measure(endpoint: str, rounds: int, seconds: float, body_bytes: int) -> None:
    link = Wire(endpoint)
    plain, lite = SendTemplate("plain", PER_REQUEST, body_bytes), LiteTemplate("lite", body_bytes)
    stock = 2 * LITE_TOPICS // PER_REQUEST
    for name, template in (("plain", plain), ("lite", lite)):
        print(f"filling {name}: {await sent(link, template, 0, stock):,.0f}/s", flush=True)
    ratios: dict[str, list[float]] = {"send": [], "receive": []}
    for number in range(rounds):
        one, other = await sent(link, plain, seconds), await sent(link, lite, seconds)
        ratios["send"].append(other / one)
        print(f"send: plain {one:,.0f}/s, lite {other:,.0f}/s, {other / one:.2f}", flush=True)
        group = f"g{number}-{next(_numbers)}"
        took = await subscribe(endpoint, "lite", f"lite-{group}")
        await link.receive(f"plain-{group}", "plain", 1, poll_s=1)
        one = await consumed(link, "plain", f"plain-{group}", seconds)
        other = await consumed(link, "lite", f"lite-{group}", seconds)
        ratios["receive"].append(other / one)
        line = f"receive and ack: plain {one:,.0f}/s, lite {other:,.0f}/s, {other / one:.2f}"
        print(f"{line}; {LITE_TOPICS:,} subscriptions took {took:.1f} s", flush=True)
    for name, found in ratios.items():
        print(f"{name}: lite of plain, median {statistics.median(found):.2f} of {[round(each, 2) for each in found]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", default="")
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--body", type=int, default=1_024)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = given.postgres or f"sqlite:///{Path(folder) / 'popmq.db'}"
        popmq = str(Path(sys.executable).with_name("popmq"))
        command = [popmq, "serve", "--port", "0", "--http", "off", "--database-url", url, "--auto-create"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
            assert server.stdout is not None
            try:
                endpoint = next(found[0] for line in server.stdout if (found := re.search(r"127\.0\.0\.1:\d+", line)))
                for topic, kind in (("plain", "NORMAL"), ("lite", "LITE")):
                    create = [popmq, "--endpoint", endpoint, "topic", "create", topic, "--type", kind]
                    subprocess.run([*create, "--queues", str(given.queues)], check=True)
                asyncio.run(measure(endpoint, given.rounds, given.seconds, given.body))
            finally:
                server.terminate()


if __name__ == "__main__":
    os.environ.setdefault("POPMQ_LOG_LEVEL", "error")
    main()
