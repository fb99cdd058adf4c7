"""Members come and go: nothing is lost, and only what was in hand and not committed is repeated, once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pytest

from popclient import ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus, MessageQueue, MessageView
from popclient._queue_push.core import QueuePushCore
from popclient._queue_push.pull_loop import PullLoop
from tests.queue_client.queue_consumers import QueueConsumers
from tests.support.scripted_server import until

QUEUES = [MessageQueue("t", number) for number in range(6)]
Place = tuple[MessageQueue, int]


@dataclass
class Change:
    """What a change of the members has begun with. owner: of each queue; unsure: consumed, and not committed."""

    owner: dict[MessageQueue, QueuePushCore]
    unsure: set[Place]
    seen: Counter[Place]


class Group:
    """Members on one scripted server, which have consumed everything whenever they change."""

    def __init__(self, consumers: QueueConsumers) -> None:
        self.consumers = consumers
        self.members: list[QueuePushCore] = []
        self.seen: Counter[Place] = Counter()
        self.may_end = asyncio.Event()
        self.may_end.set()
        consumers.server.widths["t"] = len(QUEUES)

    async def consume(
        self, messages: Sequence[MessageView], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus:
        await self.may_end.wait()
        self.seen.update((context.message_queue, message.queue_offset) for message in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    async def join(self) -> QueuePushCore:
        self.members.append(await self.consumers.start(self.consume, pull_loop=PullLoop(self.consumers.clock)))
        return self.members[-1]

    async def leave(self, member: QueuePushCore) -> None:
        self.members.remove(member)
        await member.close()

    # ---- What is where ----

    def end(self, mq: MessageQueue) -> int:
        return len(self.consumers.server.queues[mq])

    def progress(self, mq: MessageQueue) -> int:
        return self.consumers.server.progress.get(mq, 0)

    def sent(self) -> set[Place]:
        return {(mq, offset) for mq in QUEUES for offset in range(self.end(mq))}

    def owners(self) -> list[tuple[MessageQueue, QueuePushCore]]:
        return [(mq, member) for member in self.members for mq, _ in member.parts.owned() if mq in QUEUES]

    def change(self) -> Change:
        unsure = {(mq, offset) for mq in QUEUES for offset in range(self.progress(mq), self.end(mq))}
        return Change(dict(self.owners()), unsure, self.seen.copy())

    # ---- What happens ----

    async def settle(self, within: float) -> None:
        """Until every queue has one owner, and everybody as many as he is to have; nothing more is consumed then."""

        def settled() -> bool:
            least = len(QUEUES) // len(self.members)
            owned = Counter(id(member) for _, member in self.owners())
            return sorted(mq for mq, _ in self.owners()) == QUEUES and all(
                owned[id(member)] in (least, least + 1) for member in self.members
            )

        await self.consumers.comes(settled, within)
        await self.consumers.comes(self.is_idle, 5)

    def is_idle(self) -> bool:
        """Has everybody consumed all that his queues have?"""
        return all(
            member.parts.offset_store.clone_offset_table().get(mq, self.progress(mq)) == self.end(mq)
            for mq, member in self.owners()
        )

    async def send(self, count: int) -> None:
        """So many to each queue; returns when all is consumed."""
        for mq in QUEUES:
            await self.consumers.server.fill(mq, map(str, range(count)))
        await self.consumers.comes(lambda: self.seen.keys() >= self.sent() and self.is_idle(), 5)

    def repeated(self, since: Change) -> Counter[Place]:
        return self.seen - since.seen


@pytest.mark.row("G1")
@pytest.mark.row("J11")
@pytest.mark.parametrize("seed", range(3))
async def test_churn_loses_nothing_and_repeats_only_what_was_in_hand(consumers: QueueConsumers, seed: int) -> None:
    consumers.server.notices = True
    chance = random.Random(seed)
    group = Group(consumers)
    await group.join()
    await group.settle(25)
    for _ in range(6):
        await group.send(chance.randint(1, 20))
        await consumers.advance(chance.choice([0, 3, 11]), step=1)  # more or less of it is committed by now
        before = group.change()
        gone = None
        if len(group.members) > 1 and chance.random() < 0.5:
            gone = chance.choice(group.members)
            await group.leave(gone)
        else:
            await group.join()
        await group.settle(25)
        moved = {mq for mq, owner in group.owners() if owner is not before.owner[mq]}
        # Who leaves has committed all; who loses a queue to another commits it, but he may have begun before that.
        open_ones = {(mq, offset) for mq, offset in before.unsure if mq in moved and before.owner[mq] is not gone}
        assert_repeats_once(group.repeated(before), open_ones)
        for mq in moved:
            await until(lambda mq=mq: group.progress(mq) == group.end(mq))
    assert group.seen.keys() == group.sent()


def assert_repeats_once(repeated: Counter[Place], allowed: Collection[Place]) -> None:
    assert repeated.keys() <= set(allowed)
    assert set(repeated.values()) <= {1}


@pytest.mark.row("J17")
async def test_until_its_next_round_the_old_owner_goes_on_beside_the_new_one(consumers: QueueConsumers) -> None:
    """Nobody tells the members of each other: one has six queues, the other takes three of them at once."""
    group = Group(consumers)
    first = await group.join()
    await group.settle(25)
    await group.send(10)
    looks = len(consumers.server.requests("ListMembers"))
    await consumers.comes(lambda: len(consumers.server.requests("ListMembers")) > looks, 20)
    assert all(group.progress(mq) == 10 for mq in QUEUES)
    await group.send(5)
    before, began = group.change(), consumers.clock.now()
    second = await group.join()

    def owned(member: QueuePushCore) -> set[MessageQueue]:
        return {mq for mq, owner in group.owners() if owner is member}

    await until(lambda: len(owned(second)) == 3)
    assert (consumers.clock.now() - began, owned(first)) == (0, set(QUEUES))
    both = owned(second)
    await group.send(3)
    await consumers.comes(lambda: len(owned(first)) == 3, 20)
    overlap = consumers.clock.now() - began
    assert 15 < overlap <= 22 and owned(first) == set(QUEUES) - both
    await group.settle(1)
    await group.send(4)
    assert group.seen.keys() == group.sent()
    # Of what both had, the new owner gets what was not committed a second time, and what came meanwhile both get.
    twice = {place for place, times in group.seen.items() if times > 1}
    assert twice == {(mq, offset) for mq in both for offset in range(10, 18)}
    assert set(group.seen.values()) == {1, 2}
    assert {place for place in twice if place[1] < 15} == {place for place in before.unsure if place[0] in both}


@pytest.mark.row("D1")
async def test_of_every_queue_there_is_one_snapshot_with_all_that_is_not_finished(consumers: QueueConsumers) -> None:
    consumers.server.notices = True
    group = Group(consumers)
    for _ in range(3):
        await group.join()
        await group.settle(25)
    group.may_end.clear()
    for mq in QUEUES:
        await consumers.server.fill(mq, map(str, range(mq.queue_id + 1)))

    def snapshots() -> list[tuple[MessageQueue, int, int | None]]:
        tables = [member.parts.table for member in group.members]
        return sorted(
            (mq, pq.cached.messages, pq.cached.first_offset)
            for table in tables
            for mq, pq in table.items()
            if mq in QUEUES
        )

    await until(lambda: snapshots() == [(mq, mq.queue_id + 1, 0) for mq in QUEUES])
    group.members.remove(leaving := group.members[0])
    await leaving.close(0)  # waits for no listener
    await consumers.comes(lambda: snapshots() == [(mq, mq.queue_id + 1, 0) for mq in QUEUES], 25)
    group.may_end.set()
    await until(lambda: snapshots() == [(mq, 0, None) for mq in QUEUES])
    assert group.seen.keys() == group.sent()
