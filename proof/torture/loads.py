"""The load of each scene, and the topic that it needs."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass

from popclient.aio import Admin
from proof.history.scenes import Scene
from proof.torture.client_processes import GROUP as PROGRAMS
from proof.torture.consumers import GivingUpConsumer, QueueReader, Redriver
from proof.torture.lite import EXCLUSIVE, LiteConsumer, LiteProducer
from proof.torture.producers import DelayingProducer, HalfProducer, OrderedProducer
from tests.support.workload import Consumer, Load, Producer

TOPIC = "orders"
GROUPS = ("billing", "shipping")
# A server is at work most of the time then, and a round's history stays short; Spark needs the processors.
BETWEEN_SENDS_S, BESIDE_SPARK_S = 0.02, 0.3
QUEUES = 2  # as many as each group has consumers, because a queue has one reader


@dataclass(frozen=True, slots=True)
class Clients:
    """Who works in a scene; what the topic accepts."""

    message_type: str
    producer: type[Producer] = Producer
    consumer: type[Consumer] = Consumer


CLIENTS = {
    Scene.PLAIN: Clients("NORMAL"),
    Scene.FIFO: Clients("FIFO", producer=OrderedProducer),
    Scene.DELAY: Clients("DELAY", producer=DelayingProducer),
    Scene.TRANSACTIONS: Clients("TRANSACTION", producer=HalfProducer),
    Scene.REDRIVE: Clients("NORMAL", consumer=GivingUpConsumer),
    Scene.QUEUES: Clients("NORMAL", consumer=QueueReader),
    Scene.LITE: Clients("LITE", producer=LiteProducer, consumer=LiteConsumer),
    Scene.SPARK: Clients("NORMAL"),
}


class SceneLoad(Load):
    """Clients of one scene."""

    def __init__(self, scene: Scene, seed: int, groups: Iterable[str] = GROUPS, topic: str = TOPIC) -> None:
        clients = CLIENTS[scene]
        super().__init__(
            topic, groups, producers=2, consumers=QUEUES, seed=seed, producer=clients.producer,
            consumer=clients.consumer,
        )  # fmt: skip
        self.between_sends_s = BESIDE_SPARK_S if scene is Scene.SPARK else BETWEEN_SENDS_S
        finishes, count = {Scene.QUEUES: (QueueReader, QUEUES), Scene.LITE: (LiteConsumer, 1)}.get(scene, (Consumer, 1))
        self._after_programs = [
            finishes(self, f"consumer-{PROGRAMS}-{n}", PROGRAMS, random.Random(seed + n)) for n in range(count)
        ]
        self._message_type = clients.message_type
        self._redrivers = [Redriver(self, group) for group in groups] if scene is Scene.REDRIVE else []

    async def prepare(self, endpoint: str) -> None:
        """Make the topic, and the group that gets lite topics in another way than one that makes itself."""
        async with Admin(endpoint) as admin:
            await admin.create_topic(self.topic, queue_count=QUEUES, accept_message_types=self._message_type)
            if self._message_type == CLIENTS[Scene.LITE].message_type:
                await admin.create_group(EXCLUSIVE, lite="EXCLUSIVE")

    async def run_consumers(self, *endpoints: str) -> None:
        """Also those that finish what programs have left."""
        self._consumers += self._after_programs
        self._after_programs = []
        await super().run_consumers(*endpoints)

    async def send_a_few(self, *endpoints: str) -> None:
        """One message of each producer."""
        for producer, endpoint in zip(self._producers, itertools.cycle(endpoints), strict=False):
            await producer.send_one(endpoint)

    async def run(self, *endpoints: str) -> None:
        self.stopping = False
        redriving = [asyncio.create_task(each.run(endpoints[0])) for each in self._redrivers]
        await asyncio.gather(super().run(*endpoints), *redriving)
