"""Two brokers that do everything to the same few topics and groups at once, and never wait in a circle.

A circle is broken by Postgres, which takes one of the two back: it would be seen in Postgres' log alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from popserver.database import migrate
from popserver.database.check import check_integrity
from popserver.database.database import Database
from popserver.dead_letters.flow import Redrives
from popserver.dead_letters.rules import LetterSelection, RedriveItem, Repair, Selection
from popserver.engine.clock import SystemClock
from popserver.filters.tags import parse
from popserver.model.errors import PopError
from popserver.model.group import NewGroup
from popserver.model.message import Delivery, Message, SendResult
from popserver.model.names import Resource
from popserver.model.retry import Holder, RetryPolicy
from popserver.model.topic import MessageType, NewTopic
from tests.support.builders import in_order, messages_of
from tests.support.postgres import fresh_database, postgres_server
from tests.support.running_broker import TestedBroker

TOPICS = tuple(Resource("", f"topic-{number}") for number in range(3))
GROUPS = tuple(Resource("", f"group-{number}") for number in range(2))
TAKEN = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY)
TRANSIENT = Resource("", "transient")
ANY = parse("*")
WORKERS = 8


@pytest.mark.timeout(360)
async def test_two_brokers_never_wait_in_a_circle() -> None:
    await _hammer(turns=60)


@pytest.mark.slow
@pytest.mark.timeout(2_700)
async def test_two_brokers_never_wait_in_a_circle_for_long() -> None:
    await _hammer(turns=1_000)


async def _hammer(*, turns: int) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    with postgres_server(own=True) as postgres, fresh_database(postgres) as url:
        async with AsyncExitStack() as running:
            brokers = [await running.enter_async_context(_broker(url)) for _ in range(2)]
            for topic in TOPICS:
                await brokers[0].catalog.create_topic(NewTopic(topic, 4, TAKEN))
            for group in GROUPS:
                await brokers[0].catalog.create_group(NewGroup(group, RetryPolicy(3, (5,), 5)))
            handles: list[_Held] = []
            workers = [
                _Worker(brokers[number % 2], random.Random(f"{seed} {number}"), handles) for number in range(WORKERS)
            ]
            await asyncio.gather(*(worker.work(turns) for worker in workers))
            found = postgres.deadlocks()
            assert found == [], f"seed {seed}: {len(found)} circles"
            assert not (failed := [each for worker in workers for each in worker.failed]), f"seed {seed}: {failed[:5]}"
            await asyncio.gather(*(each.settle() for each in brokers))
            await brokers[0].engine.reader.read(check_integrity)


@asynccontextmanager
async def _broker(url: str) -> AsyncIterator[TestedBroker]:
    database = Database(url, durability="relaxed")
    migrate.upgrade(database)
    broker = TestedBroker(database, SystemClock(), auto_create=True, retention_ms=2_000, shared=True)
    broker.engine.writer.start()
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()
        database.close()


_Held = tuple[Resource, Resource, Delivery]


class _Worker:
    """Does one thing after the other, by chance; what others hold is named as well."""

    def __init__(self, broker: TestedBroker, chance: random.Random, held: list[_Held]) -> None:
        self._broker = broker
        self._redrives = Redrives(broker.engine.reader, broker.engine.writer)
        self._chance = chance
        self._held = held  # everybody's
        self._client_id = f"client-{chance.randrange(4)}"
        self.failed: list[str] = []
        self._deeds: list[Callable[[], Awaitable[object]]] = [
            *[self._send] * 4,
            *[self._send_in_order] * 3,
            self._send_delayed,
            *[self._receive] * 8,
            *[self._ack] * 6,
            *[self._change] * 2,
            self._forward,
            self._come_and_go,
            self._grow,
            self._make_and_delete,
            *[self._redrive] * 2,
            self._purge,
        ]

    async def work(self, turns: int) -> None:
        for _ in range(turns):
            try:
                await self._chance.choice(self._deeds)()
            except PopError as refusal:
                if "refused a statement" in refusal.sentence or "does not answer" in refusal.sentence:
                    self.failed.append(refusal.sentence)

    async def _send(self) -> None:
        batch = messages_of(self._chance.choice((1, 8, 32)), self._chance.choice(TOPICS))
        await asyncio.gather(*(self._sent(batch) for _ in range(self._chance.choice((1, 1, 2)))))

    async def _send_in_order(self) -> None:
        topic = self._chance.choice(TOPICS)
        batch = [each for _ in range(6) for each in in_order(f"g{self._chance.randrange(12)}", 2, topic)]
        self._chance.shuffle(batch)
        await self._sent(batch)

    async def _send_delayed(self) -> None:
        at_ms = self._broker.engine.clock.now_ms() + self._chance.randrange(1, 40)
        topic = self._chance.choice(TOPICS)
        await self._sent(messages_of(5, topic, message_type=MessageType.DELAY, deliver_at_ms=at_ms))

    async def _sent(self, batch: list[Message]) -> None:
        for each in await self._broker.send(batch):
            if not isinstance(each, SendResult) and "refused a statement" in each.sentence:
                self.failed.append(each.sentence)

    async def _receive(self) -> None:
        topic, group = self._chance.choice(TOPICS), self._chance.choice(GROUPS)
        received = await self._broker.receive(
            group,
            topic,
            wanted=ANY,
            batch_size=self._chance.choice((1, 8, 32)),
            invisible_ms=self._chance.choice((5, 50, 500)),
            holder=self._chance.choice((Holder.PUSH, Holder.SIMPLE)),
            client_id=self._client_id,
            poll_until_ms=self._broker.engine.clock.now_ms() + 20,
        )
        self._held += [(group, topic, each) for each in received]

    async def _ack(self) -> None:
        some = self._some(20)
        for group in GROUPS:
            for topic in TOPICS:
                handles = [each.receipt_handle for at, of, each in some if (at, of) == (group, topic)]
                if handles:
                    await self._broker.ack(group, topic, handles)

    async def _change(self) -> None:
        each_one = (
            self._broker.change_invisible(
                group, topic, each.receipt_handle, self._chance.randrange(20), give_back=self._chance.random() < 0.2
            )
            for group, topic, each in self._some(5)
        )
        await asyncio.gather(*each_one, return_exceptions=True)

    async def _forward(self) -> None:
        each_one = (
            self._broker.forward_to_dead_letter_queue(group, topic, each.receipt_handle)
            for group, topic, each in self._some(4)
        )
        await asyncio.gather(*each_one, return_exceptions=True)

    async def _come_and_go(self) -> None:
        clients = self._broker.sessions.clients
        clients.seen(self._client_id)
        clients.pushes(self._client_id)
        if self._chance.random() < 0.5:
            clients.ended(self._client_id)

    async def _grow(self) -> None:
        topic = self._chance.choice(TOPICS)
        have = len((await self._broker.catalog.topic(topic)).queues)
        await self._broker.catalog.update_topic(topic, queue_count=min(have + 1, 12))

    async def _make_and_delete(self) -> None:
        await self._sent(messages_of(3, TRANSIENT))
        await self._broker.receive(
            self._chance.choice(GROUPS),
            TRANSIENT,
            wanted=ANY,
            batch_size=2,
            invisible_ms=5,
            holder=Holder.SIMPLE,
            client_id=self._client_id,
            poll_until_ms=0,
        )
        await self._broker.catalog.delete_topic(TRANSIENT)

    async def _redrive(self) -> None:
        group = self._chance.choice(GROUPS)
        plan_id, target = f"plan-{self._chance.randrange(20)}", self._chance.choice((None, None, *TOPICS))
        page = await self._redrives.dead_letters(LetterSelection(group), 0, 20, bodies=False)
        repairs = (None, Repair(b"mended"))
        orders = [RedriveItem(each.dead_letter_id, "", self._chance.choice(repairs)) for each in page.letters]
        if orders and self._chance.random() < 0.5:
            await self._redrives.redrive(plan_id, group, orders, "", target, "")
            return
        await self._redrives.plan(plan_id, LetterSelection(group), "", target, "")
        await self._redrives.run(plan_id, 10)

    async def _purge(self) -> None:
        await self._redrives.purge(
            LetterSelection(self._chance.choice(GROUPS), only=Selection(redriven_too=True)), 0, 5
        )

    def _some(self, count: int) -> list[_Held]:
        """Some of what anybody was given, in any order; now and then it is left there for another one as well."""
        some = [self._held[self._chance.randrange(len(self._held))] for _ in range(count)] if self._held else []
        if self._chance.random() < 0.8:
            self._held[:] = [each for each in self._held if each not in some][-500:]
        return some
