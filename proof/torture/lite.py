"""Lite topics under torture: who sends to which, and consumers that subscribe and unsubscribe. Raw stubs."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from proof.history.events import LiteReceive, LiteSync, OrderedSend
from tests.support.checker import Delivered, Outcome, Receive, Send
from tests.support.workload import Consumer, Producer, asked, now_ms

# Each has lite topics of its own, because only one sender at a time makes an order that can be judged.
SENDERS = ("producer-0", "producer-1", "program")
LITE_TOPICS_EACH = 3
# In this group of the load a lite topic has one client at a time, the last that has added it.
EXCLUSIVE = "shipping"
RECEIVES_PER_SYNC = 2  # so the server does not take a client for gone, which it does after 90 s


def lite_topics_of(sender: str) -> list[str]:
    return [f"{sender}-lite-{number}" for number in range(LITE_TOPICS_EACH)]


LITE_TOPICS = tuple(name for sender in SENDERS for name in lite_topics_of(sender))


def some_lite_topics(chance: random.Random) -> list[str]:
    """One of each sender at least, and not all."""
    return [name for sender in SENDERS for name in chance.sample(lite_topics_of(sender), chance.randint(1, 2))]


class LiteProducer(Producer):
    """Waits for each answer before it sends to a lite topic again."""

    def _message(self) -> pb.Message:
        message = super()._message()
        message.system_properties.message_type = pb.LITE
        message.system_properties.lite_topic = self._chance.choice(lite_topics_of(self._name))
        return message

    def _event(self, message: pb.Message, outcome: Outcome, invoked_ms: float) -> Send:
        plain = super()._event(message, outcome, invoked_ms)
        lite_topic = message.system_properties.lite_topic
        return OrderedSend(
            plain.outcome, plain.invoked_ms, plain.completed_ms, plain.message_id, plain.digest, lite_topic
        )  # fmt: skip


class LiteConsumer(Consumer):
    """A client that subscribes to lite topics. It begins with every second one and changes them now and then; a
    careful one has all."""

    _receives = 0
    _subscribed: frozenset[str] = frozenset()

    async def _receive(self, stub: Any) -> None:
        if self._receives % RECEIVES_PER_SYNC == 0:
            await self._subscribe(stub)
        self._receives += 1
        await super()._receive(stub)

    async def _subscribe(self, stub: Any) -> None:
        if self.careful:
            await self._sync(stub, pb.COMPLETE_ADD, LITE_TOPICS)
        elif not self._subscribed:
            await self._sync(stub, pb.COMPLETE_ADD, LITE_TOPICS[int(self._name.rpartition("-")[2]) % 2 :: 2])
        elif self.group == EXCLUSIVE:
            await self._sync(stub, pb.PARTIAL_ADD, self._chance.sample(LITE_TOPICS, 3))
        elif self._chance.random() < 0.5 and len(self._subscribed) > 1:
            await self._sync(stub, pb.PARTIAL_REMOVE, [self._chance.choice(sorted(self._subscribed))])
        else:
            await self._sync(stub, pb.PARTIAL_ADD, [self._chance.choice(LITE_TOPICS)])

    async def _sync(self, stub: Any, action: pb.LiteSubscriptionAction.ValueType, names: Collection[str]) -> None:
        """Until it is known that the server has done it: else nobody knows what the client may get."""
        request = wire.SyncLiteSubscriptionRequest(
            action=action, group=pb.Resource(name=self.group), topic=pb.Resource(name=self._load.topic),
            lite_topic_set=names,
        )  # fmt: skip
        adds, outcome = action != pb.PARTIAL_REMOVE, Outcome.UNKNOWN
        takes = self.group == EXCLUSIVE and action == pb.PARTIAL_ADD
        while outcome is not Outcome.OK and not self._load.stopping:
            invoked_ms = now_ms()
            outcome, _ = await asked(stub.SyncLiteSubscription, request, self._name)
            self._load.history.add(
                LiteSync(outcome, invoked_ms, now_ms(), self.group, self._name, tuple(sorted(names)), adds, takes)
            )
            await self._pause_after(outcome)
        self._subscribed = self._subscribed | {*names} if adds else self._subscribed - {*names}

    def _received(
        self, outcome: Outcome, invoked_ms: float, invisible_ms: float, deliveries: tuple[Delivered, ...]
    ) -> Receive:
        return LiteReceive(outcome, invoked_ms, now_ms(), self.group, invisible_ms, deliveries, self._name)
