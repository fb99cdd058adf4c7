"""Pull consumers that share a topic's queues: disjoint parts that are together everything, and no queue is locked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

import pytest

import popserver
from popclient import ClientConfig, Message, MessageQueue, NotFound, Producer, PullConsumer, Unreachable, aio
from popclient._pull import subscribe as subscribing
from popclient.admin import Admin
from tests.support.pull_consumers import make_topic, members, read_all
from tests.support.queue_server import QueueServer
from tests.support.scripted_server import until, until_in_thread

FIRST = "CONSUME_FROM_FIRST_OFFSET"


@pytest.mark.row("J16")
@pytest.mark.parametrize(
    ("queues", "parts"),
    [
        (6, [[0, 1, 2, 3, 4, 5]]),
        (6, [[0, 1, 2], [3, 4, 5]]),
        (5, [[0, 1, 2], [3, 4]]),
        (3, [[0, 1], [2]]),
        (8, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (2, [[0], [1], []]),
    ],
)
def test_the_parts_of_averagely(
    shared: popserver.EmbeddedBroker, topic: str, queues: int, parts: list[list[int]]
) -> None:
    make_topic(shared, topic, queues)
    with contextlib.ExitStack() as running:
        members = [running.enter_context(PullConsumer(shared.endpoint, f"{topic}-g")) for _ in parts]
        for member in members:
            member.subscribe(topic)
        members.sort(key=lambda member: member.client_id)
        until_in_thread(lambda: [[mq.queue_id for mq in member.assignment] for member in members] == parts)


@pytest.mark.row("F9")
async def test_no_queue_is_locked(server: QueueServer) -> None:
    async with aio.PullConsumer(server.endpoints, "g") as consumer:
        server.answers["ListMembers"] = lambda _: members(consumer.client_id)
        assert await consumer.subscribe("flights") == [MessageQueue("flights", queue_id) for queue_id in range(4)]
        await until(lambda: len(server.requests("PullMessage")) == 4)
        await consumer.assign([])
        assert not server.requests("LockQueues")
        assert not server.requests("UnlockQueues")


def test_who_comes_and_who_goes_moves_queues_and_loses_nothing(shared: popserver.EmbeddedBroker, topic: str) -> None:
    queues = make_topic(shared, topic, 4)
    bodies = [str(number) for number in range(200)]
    with Producer(shared.endpoint) as producer, PullConsumer(shared.endpoint, f"{topic}-g", consume_from=FIRST) as one:
        assert one.subscribe(topic) == queues
        producer.send_many([Message(topic, body) for body in bodies[:100]])
        seen = read_all([one], 100)
        with PullConsumer(shared.endpoint, f"{topic}-g", consume_from=FIRST) as other:
            assert len(other.subscribe(topic)) == 2
            until_in_thread(lambda: sorted(one.assignment + other.assignment) == queues)
            producer.send_many([Message(topic, body) for body in bodies[100:]])
            seen += read_all([one, other], 100)
        until_in_thread(lambda: one.assignment == queues)
    assert sorted(set(seen), key=int) == bodies


def test_to_assign_is_to_leave(shared: popserver.EmbeddedBroker, topic: str) -> None:
    queues = make_topic(shared, topic, 4)
    with PullConsumer(shared.endpoint, f"{topic}-g") as one, PullConsumer(shared.endpoint, f"{topic}-g") as other:
        one.subscribe(topic)
        other.subscribe([topic])
        until_in_thread(lambda: len(one.assignment) == 2)
        assert other.assign(queues[:1]) == queues[:1]
        until_in_thread(lambda: one.assignment == queues)
        assert other.assignment == queues[:1]


def test_what_is_lost_is_committed_as_far_as_it_is_dealt_with(shared: popserver.EmbeddedBroker, topic: str) -> None:
    [mq] = make_topic(shared, topic, 1)
    with Producer(shared.endpoint) as producer:
        producer.send_many([Message(topic, str(number)) for number in range(10)])
    with PullConsumer(shared.endpoint, f"{topic}-g", consume_from=FIRST, auto_commit=True) as consumer:
        consumer.subscribe(topic)
        consumer.poll(5, 4)
        consumer.poll(5, 2)
        consumer.assign([])
        assert consumer.committed(mq) == 4


def test_a_topic_that_there_is_not_changes_nothing(topic: str) -> None:
    with popserver.embedded(auto_create=False) as broker:
        make_topic(broker, topic, 1)
        with Admin(broker.endpoint) as admin:
            admin.create_group("g")
        with PullConsumer(broker.endpoint, "g") as consumer:
            consumer.subscribe(topic)
            with pytest.raises(NotFound, match="nowhere"):
                consumer.subscribe([topic, "nowhere"])
            assert consumer.assignment == [MessageQueue(topic, 0)]
            with pytest.raises(TypeError, match="to read queues, assign them"):
                consumer.subscribe(MessageQueue(topic, 0))  # type: ignore[arg-type]


async def test_a_server_that_never_counts_the_member_is_named(server: QueueServer) -> None:
    config = ClientConfig(server.endpoints, request_timeout=0.1)
    async with aio.PullConsumer(config, "g") as consumer:
        mine = MessageQueue("flights", 3)
        await consumer.assign(mine)
        with pytest.raises(Unreachable, match=f"has not made {consumer.client_id} a member"):
            await consumer.subscribe("flights")
        assert consumer.assignment == [mine]
        await until(lambda: not server.settings[-1].subscription.subscriptions)


@pytest.mark.parametrize("take", ["quick", "slow"])
async def test_who_came_and_went_without_a_notice_is_noticed_all_the_same(
    server: QueueServer, monkeypatch: pytest.MonkeyPatch, take: str
) -> None:
    monkeypatch.setattr(subscribing, "PAUSE", 0.05)
    monkeypatch.setattr(subscribing, "PERIOD", 1_000.0)
    if take == "slow":  # taking what was found takes longer than the pause
        quick = subscribing.Subscribing._take

        async def slow(self: subscribing.Subscribing) -> None:
            await asyncio.sleep(0.1)
            await quick(self)

        monkeypatch.setattr(subscribing.Subscribing, "_take", slow)
    queues = [MessageQueue("flights", queue_id) for queue_id in range(4)]
    pauses: list[float | None] = []
    timeout = asyncio.timeout

    def noted(seconds: float | None) -> asyncio.Timeout:
        pauses.extend([seconds] if seconds in (0.05, 1_000.0) else [])
        return timeout(seconds)

    monkeypatch.setattr(asyncio, "timeout", noted)
    async with aio.PullConsumer(server.endpoints, "g") as consumer:
        server.answers["ListMembers"] = lambda _: members(consumer.client_id, "a passer-by")
        assert len(await consumer.subscribe("flights")) == 2
        server.answers["ListMembers"] = lambda _: members(consumer.client_id)
        await until(lambda: consumer.assignment == queues)
        await until(lambda: pauses[-2:] == [0.05, 1_000.0])  # a second look soon, and then no more


@pytest.mark.row("J16")
async def test_a_strategy_that_fails_later_leaves_the_queues_where_they_are(
    shared: popserver.EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again every second, and the log says so once."""
    monkeypatch.setattr(subscribing, "PAUSE", 0.05)
    queues = make_topic(shared, topic, 4)
    failed: list[int] = []

    def all_or_fail(_: str, __: str, there: Sequence[MessageQueue], members: Sequence[str]) -> Sequence[MessageQueue]:
        if len(members) > 1:
            failed.append(len(members))
            raise ZeroDivisionError("two are too many")
        return there

    group = f"{topic}-g"
    async with aio.PullConsumer(shared.endpoint, group, allocate_strategy=all_or_fail) as consumer:
        assert await consumer.subscribe(topic) == queues
        with caplog.at_level(logging.WARNING, "popclient"):
            async with aio.PullConsumer(shared.endpoint, group) as other:
                assert len(await other.subscribe(topic)) == 2
                await until(lambda: len(failed) >= 3)
                assert caplog.text.count("two are too many") == 1
                assert consumer.assignment == queues
