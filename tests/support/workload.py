"""Clients that work a server hard and write down what they did and saw: raw stubs, nothing retried behind our back.

Consumers hold messages over restarts, let some holds run out, change the time of others, and try old handles again:
what must be refused is part of the load.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popproto.v2.service_pb2_grpc import MessagingServiceStub
from popserver.model.message import REDRIVE_OF, REDRIVE_PLAN
from popserver.transport.convert import set_ms
from tests.support.checker import Ack, ChangeInvisible, Delivered, History, Outcome, Receive, Send

CALL_TIMEOUT_S = 10.0
POLL_MS = 5_000
INVISIBLE_MS = (300, 1_200)
# A server that is being killed fails many calls in no time; nobody learns anything from a thousand of those.
PAUSE_AFTER_FAILURE_S = 0.02
HELD_MAX = 64


class Load:
    """Producers, and consumers of several groups, on one topic; each run ends when `stop` is called."""

    between_sends_s = 0.0  # of each producer

    def __init__(
        self,
        topic: str,
        groups: Iterable[str],
        *,
        producers: int,
        consumers: int,
        seed: int,
        producer: type[Producer] | None = None,
        consumer: type[Consumer] | None = None,
    ) -> None:
        self.history = History()
        self._topic = topic
        produces, consumes = producer or Producer, consumer or Consumer
        self._producers = [produces(self, f"producer-{n}", random.Random(seed + n)) for n in range(producers)]
        self._consumers = [
            consumes(self, f"consumer-{group}-{n}", group, random.Random(f"{seed} {group} {n}"))
            for group in groups
            for n in range(consumers)
        ]
        self.stopping = False

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def groups(self) -> frozenset[str]:
        """Those that its consumers consume for."""
        return frozenset(each.group for each in self._consumers)

    def stop(self) -> None:
        self.stopping = True

    async def run(self, *endpoints: str) -> None:
        """Work until `stop`; broken calls are written down, and the next one tries again.

        With several servers each worker keeps to one of them.
        """
        await self._each([*self._producers, *self._consumers], endpoints)

    async def run_consumers(self, *endpoints: str) -> None:
        """The same without new messages, and without mischief: everything received is acked."""
        for consumer in self._consumers:
            consumer.careful = True
        await self._each(self._consumers, endpoints)

    async def _each(self, workers: Iterable[Producer | Consumer], endpoints: Sequence[str]) -> None:
        self.stopping = False
        await asyncio.gather(*map(lambda worker, endpoint: worker.run(endpoint), workers, itertools.cycle(endpoints)))


class Producer:
    """Sends batches; a batch whose outcome is unknown is sometimes sent again as it was."""

    def __init__(self, load: Load, name: str, chance: random.Random) -> None:
        self._load = load
        self._name = name
        self._chance = chance
        self._count = 0
        self._again: list[pb.Message] = []

    async def run(self, endpoint: str) -> None:
        async with stub_of(endpoint) as stub:
            while not self._load.stopping:
                batch = self._again or [self._message() for _ in range(self._chance.choice((1, 1, 2, 8, 32)))]
                self._again = []
                await self._send(stub, batch)
                await asyncio.sleep(self._load.between_sends_s)

    async def send_one(self, endpoint: str) -> None:
        async with stub_of(endpoint) as stub:
            await self._send(stub, [self._message()])

    async def _send(self, stub: Any, batch: list[pb.Message]) -> None:
        invoked_ms = now_ms()
        request = wire.SendMessageRequest(messages=batch)
        _, answer = await asked(stub.SendMessage, request, self._name)
        outcomes = [Outcome.UNKNOWN] * len(batch)
        if answer is not None:
            assert [entry.message_id for entry in answer.entries] == [_id(each) for each in batch]
            outcomes = [outcome_of(entry.status) for entry in answer.entries]
        for each, outcome in zip(batch, outcomes, strict=True):
            self._load.history.add(self._event(each, outcome, invoked_ms))
        if Outcome.UNKNOWN in outcomes:
            self._again = self._chance.choice((batch, []))
            await asyncio.sleep(PAUSE_AFTER_FAILURE_S)

    def _event(self, message: pb.Message, outcome: Outcome, invoked_ms: float) -> Send:
        """What the history says of one message of a batch that was answered now."""
        return Send(outcome, invoked_ms, now_ms(), _id(message), digest_of(message))

    def _message(self) -> pb.Message:
        self._count += 1
        message_id = f"{self._name}-{self._count}"
        return pb.Message(
            topic=pb.Resource(name=self._load.topic),
            body=self._chance.randbytes(self._chance.choice((1, 100, 1_000))),
            user_properties={"n": str(self._count), "who": self._name},
            system_properties=pb.SystemProperties(message_id=message_id, body_encoding=pb.IDENTITY),
        )


class Consumer:
    """Receives, and does with each message one of the things that consumers do."""

    def __init__(self, load: Load, name: str, group: str, chance: random.Random) -> None:
        self._load = load
        self._name = name
        self.group = group
        self._chance = chance
        self._held: list[tuple[str, str]] = []  # message id, handle
        self.careful = False

    async def run(self, endpoint: str) -> None:
        async with stub_of(endpoint) as stub:
            while not self._load.stopping:
                if self.careful or len(self._held) < HELD_MAX:
                    await self._receive(stub)
                await self._work(stub)

    async def _receive(self, stub: Any) -> None:
        invisible_ms = self._chance.randint(*INVISIBLE_MS) * (5 if self.careful else 1)
        request = wire.ReceiveMessageRequest(
            group=pb.Resource(name=self.group),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=self._load.topic)),
            batch_size=32 if self.careful else self._chance.choice((1, 8, 32)),
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
        )
        set_ms(request.invisible_duration, invisible_ms)
        set_ms(request.long_polling_timeout, POLL_MS)
        invoked_ms = now_ms()
        outcome, deliveries = Outcome.OK, []
        try:
            async for frame in stub.ReceiveMessage(request, metadata=named(self._name), timeout=2 * CALL_TIMEOUT_S):
                if frame.HasField("message"):
                    deliveries.append(delivered(frame.message))
                elif frame.HasField("status") and outcome is Outcome.OK:
                    outcome = outcome_of(frame.status)
        except grpc.aio.AioRpcError:
            outcome = Outcome.UNKNOWN
        self._load.history.add(self._received(outcome, invoked_ms, invisible_ms, tuple(deliveries)))
        self._held += [(each.message_id, each.handle) for each in deliveries]
        await self._pause_after(outcome)

    def _received(
        self, outcome: Outcome, invoked_ms: float, invisible_ms: float, deliveries: tuple[Delivered, ...]
    ) -> Receive:
        """What the history says of a receive that has ended now."""
        return Receive(outcome, invoked_ms, now_ms(), self.group, invisible_ms, deliveries)

    async def _work(self, stub: Any) -> None:
        held, self._held = self._held, []
        self._chance.shuffle(held)
        if self.careful:
            await self._ack(stub, held)
            return
        acked = held[: len(held) * 3 // 4]
        await self._ack(stub, acked)
        for each in held[len(acked) :]:
            await self._choose()(stub, *each)

    def _choose(self) -> Callable[[Any, str, str], Any]:
        return self._chance.choice((self._change, self._keep, self._keep, self._forget, self._ack_twice))

    async def _keep(self, _stub: Any, message_id: str, handle: str) -> None:
        """Acked in a later round: by then it may have run out, or the server may have died meanwhile."""
        self._held.append((message_id, handle))

    async def _forget(self, _stub: Any, _message_id: str, _handle: str) -> None:
        """The hold runs out by itself."""

    async def _ack_twice(self, stub: Any, message_id: str, handle: str) -> None:
        for _ in range(2):
            await self._ack(stub, [(message_id, handle)])

    async def _ack(self, stub: Any, held: list[tuple[str, str]]) -> None:
        if not held:
            return
        request = wire.AckMessageRequest(
            group=pb.Resource(name=self.group),
            topic=pb.Resource(name=self._load.topic),
            entries=[wire.AckMessageEntry(message_id=each, receipt_handle=handle) for each, handle in held],
        )
        invoked_ms = now_ms()
        outcome, answer = await asked(stub.AckMessage, request, self._name)
        entries = answer.entries if answer is not None else ()
        outcomes = [outcome_of(entry.status) for entry in entries] or [outcome] * len(held)
        for (message_id, handle), outcome in zip(held, outcomes, strict=True):
            self._load.history.add(Ack(outcome, invoked_ms, now_ms(), self.group, message_id, handle))
            if outcome is Outcome.UNKNOWN:
                self._held.append((message_id, handle))
        await self._pause_after(*outcomes)

    async def _change(self, stub: Any, message_id: str, handle: str) -> None:
        duration_ms = self._chance.randint(*INVISIBLE_MS)
        request = wire.ChangeInvisibleDurationRequest(
            group=pb.Resource(name=self.group),
            topic=pb.Resource(name=self._load.topic),
            receipt_handle=handle,
            message_id=message_id,
        )
        set_ms(request.invisible_duration, duration_ms)
        invoked_ms = now_ms()
        outcome, answer = await asked(stub.ChangeInvisibleDuration, request, self._name)
        new_handle = answer.receipt_handle if outcome is Outcome.OK else ""
        self._load.history.add(
            ChangeInvisible(outcome, invoked_ms, now_ms(), self.group, message_id, handle, duration_ms, new_handle)
        )
        # Now and then the replaced handle is tried again: it must be refused.
        kept = handle if not new_handle or self._chance.random() < 0.2 else new_handle
        self._held.append((message_id, kept))
        await self._pause_after(outcome)

    async def _pause_after(self, *outcomes: Outcome) -> None:
        if Outcome.UNKNOWN in outcomes:
            await asyncio.sleep(PAUSE_AFTER_FAILURE_S)


async def asked(call: Callable[..., Awaitable[Any]], request: object, client_id: str) -> tuple[Outcome, Any]:
    """What became of a call, and its answer; None without one."""
    try:
        answer = await call(request, metadata=named(client_id), timeout=CALL_TIMEOUT_S)
    except grpc.aio.AioRpcError:
        return Outcome.UNKNOWN, None
    return outcome_of(answer.status), answer


def now_ms() -> float:
    return time.monotonic() * 1_000


def outcome_of(status: pb.Status) -> Outcome:
    """An internal error may hide a commit; every other refusal says that nothing changed."""
    if status.code in {pb.OK, pb.MESSAGE_NOT_FOUND}:
        return Outcome.OK
    return Outcome.UNKNOWN if status.code == pb.INTERNAL_SERVER_ERROR else Outcome.REFUSED


def delivered(message: pb.Message) -> Delivered:
    system = message.system_properties
    return Delivered(system.message_id, digest_of(message), system.delivery_attempt, system.receipt_handle)


def digest_of(message: pb.Message) -> str:
    """Of what its producer gave; a redrive adds where the message comes from."""
    added = {REDRIVE_OF, REDRIVE_PLAN}
    return digest(message.body, {name: each for name, each in message.user_properties.items() if name not in added})


def digest(body: bytes, properties: dict[str, str]) -> str:
    """One text for what a message carries."""
    return hashlib.sha256(body + json.dumps(properties, sort_keys=True).encode()).hexdigest()[:16]


def _id(message: pb.Message) -> str:
    return message.system_properties.message_id


def named(client_id: str) -> tuple[tuple[str, str], ...]:
    return (("x-mq-client-id", client_id),)


@asynccontextmanager
async def stub_of(endpoint: str) -> AsyncIterator[Any]:
    options = [
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 200),
        ("grpc.use_local_subchannel_pool", 1),  # a connection of its own
    ]
    async with grpc.aio.insecure_channel(endpoint, options=options) as channel:
        yield MessagingServiceStub(channel)
