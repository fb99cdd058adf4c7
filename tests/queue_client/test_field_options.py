"""What a consumer of RocketMQ 4 may be told and asked besides: threads, bytes, delays, hand-backs, statistics."""

from __future__ import annotations

import asyncio
import gc
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

import popserver
from popclient import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    Message,
    MessageQueue,
    MessageView,
    PreconditionFailed,
    Producer,
    PullConsumer,
    QueuePushConsumer,
    aio,
    consumer_statistics,
)
from popclient._consume.context import QueueCall, QueueListener
from popclient._consume.statistics import Statistics
from popclient._engine.clock import LoopClock
from popclient._engine.interceptors import InterceptorChain
from popclient._engine.runner import ThreadRunner
from popclient._progress.local import LocalFileOffsetStore
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.queue_client.manual_clock import ManualClock
from tests.queue_client.queue_consumers import Q, QueueConsumers
from tests.support.message_views import view_at
from tests.support.scripted_server import status, until, until_in_thread

SUCCESS, LATER = ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeConcurrentlyStatus.RECONSUME_LATER
FIRST = "CONSUME_FROM_FIRST_OFFSET"


def send(broker: popserver.EmbeddedBroker, topic: str, *bodies: bytes) -> None:
    with Producer(broker.endpoint) as producer:
        producer.send_many([Message(topic, body) for body in bodies]).raise_for_failures()


# ---- Threads ----


@pytest.mark.row("E1")
@pytest.mark.parametrize(("least", "left"), [(2, 2), (5, 5), (None, 5)])
def test_threads_beyond_the_minimum_end_when_there_is_nothing_to_do(least: int | None, left: int) -> None:
    posted: SimpleQueue[Any] = SimpleQueue()
    together = threading.Barrier(5)
    listener = QueueListener("g", lambda *_: together.wait(10), 60, InterceptorChain([]), LoopClock())
    threads = ThreadRunner("g", 5, least, post=posted.put, keep_alive=0.01)
    ended: list[Any] = []

    def five() -> None:
        del ended[:]
        for _ in range(5):  # the fifth comes together with the other four, or none does
            context = ConsumeConcurrentlyContext(Q)
            threads.run(QueueCall(listener, [view_at(0)], context, lambda: True, ended.append))
        while len(ended) < 5:
            posted.get(timeout=10)()

    five()
    until_in_thread(lambda: len(threads._threads) == left)
    five()  # those that have ended are started again when they are needed
    until_in_thread(lambda: len(threads._threads) == left)
    threads.stop()


def test_the_option_reaches_the_threads(shared: popserver.EmbeddedBroker, topic: str) -> None:
    consumer = QueuePushConsumer(shared.endpoint, topic, topic, lambda *_: SUCCESS, consume_threads_min=3)
    runner: Any = consumer._core.parts.runner
    assert (runner._least, runner._most, runner._keep_alive) == (3, 20, 60)


# ---- Delays ----


@pytest.mark.row("B18")
async def test_a_pull_that_fails_is_repeated_after_the_delay(consumers: QueueConsumers) -> None:
    await consumers.server.fill(Q, "a")
    consumers.server.answers["PullMessage"] = lambda _: [rpc.PullMessageResponse(status=status(pb.INTERNAL_ERROR))]
    await consumers.start(pull_delay_when_exception=7)  # not 20: members check their shares every 20 s
    await until(lambda: consumers.clock.waits(7))
    pulls = consumers.server.pulls_of(Q)  # two, if the subscription changed during the first one
    del consumers.server.answers["PullMessage"]
    await consumers.clock.advance(6)
    assert consumers.server.pulls_of(Q) == pulls
    await consumers.clock.advance(1)
    await until(lambda: consumers.texts == ["a"])


@pytest.mark.row("H7")
async def test_progress_is_committed_at_the_interval(consumers: QueueConsumers) -> None:
    core = await consumers.start(persist_interval=60)
    await consumers.owns(core, 0)
    await consumers.server.fill(Q, ["0"])
    await until(lambda: consumers.offset(core) == 1)
    await consumers.comes(lambda: consumers.server.requests("CommitOffsets"), 10)
    await consumers.server.fill(Q, ["1"])
    await until(lambda: consumers.offset(core) == 2)
    before = len(consumers.server.requests("CommitOffsets"))
    await consumers.advance(50, step=5)
    assert len(consumers.server.requests("CommitOffsets")) == before
    await consumers.comes(lambda: len(consumers.server.requests("CommitOffsets")) > before, 15)


# ---- Bytes ----


@pytest.mark.row("B12")
async def test_a_pull_brings_so_many_bytes_but_always_one_message(shared: popserver.EmbeddedBroker, topic: str) -> None:
    await asyncio.to_thread(send, shared, topic, *[b"x" * 400] * 5, b"y" * 5_000)
    sizes: list[int] = []

    async def listener(messages: Any, _: Any) -> ConsumeConcurrentlyStatus:
        sizes.append(sum(len(message.body) for message in messages))
        return SUCCESS

    options: dict[str, Any] = {"pull_batch_size_in_bytes": 1_000, "consume_message_batch_max_size": 32}
    async with aio.QueuePushConsumer(shared.endpoint, topic, topic, listener, consume_from=FIRST, **options):
        await until(lambda: sum(sizes) == 7_000, 15)
    assert sorted(sizes) == [400, 800, 800, 5_000]


# ---- Asked for by the user ----


async def test_queues_places_and_a_message_that_is_handed_back(shared: popserver.EmbeddedBroker, topic: str) -> None:
    await asyncio.to_thread(send, shared, topic, b"x")
    seen: list[MessageView] = []

    async def listener(messages: Any, _: Any) -> ConsumeConcurrentlyStatus:
        seen.extend(messages)
        return SUCCESS

    async with aio.QueuePushConsumer(shared.endpoint, topic, topic, listener, consume_from=FIRST) as consumer:
        assert await consumer.queues(topic) == [MessageQueue(topic, number) for number in range(8)]
        await until(lambda: len(seen) == 1, 15)
        mq = MessageQueue(topic, seen[0].queue_id)
        stored_at = seen[0].store_timestamp
        assert stored_at is not None
        assert await consumer.search_offset(mq, stored_at) == 0
        assert await consumer.search_offset(mq, stored_at + timedelta(hours=1)) == 1
        with pytest.raises(ValueError, match="has no time zone"):
            await consumer.search_offset(mq, datetime.now(UTC).replace(tzinfo=None))
        assert not await consumer.send_message_back(seen[0], 1)
        await until(lambda: len(seen) == 2, 25)
        assert (seen[1].topic, seen[1].text, seen[1].delivery_attempt) == (topic, "x", 2)
        assert await consumer.send_message_back(seen[1], -1), "a retry is handed back as what it is"
        with pytest.raises(ValueError, match="delay_level is 19; it must be from"):
            await consumer.send_message_back(seen[1], 19)
        with pytest.raises(TypeError, match="hand back a MessageView that was pulled"):
            await consumer.send_message_back("x")  # type: ignore[arg-type]


def test_the_faces_in_threads_have_the_same(shared: popserver.EmbeddedBroker, topic: str) -> None:
    send(shared, topic, b"x")
    with QueuePushConsumer(shared.endpoint, f"{topic}-push", topic, lambda *_: SUCCESS) as consumer:
        assert len(consumer.queues(topic)) == 8
        assert consumer.search_offset(MessageQueue(topic, 0), datetime.now(UTC) - timedelta(hours=1)) == 0
    with PullConsumer(shared.endpoint, topic, consume_from=FIRST) as puller:
        puller.assign(topic)
        [message] = puller.poll(15)
        mq = MessageQueue(topic, message.queue_id)
        assert puller.search_offset(mq, datetime.now(UTC) + timedelta(hours=1)) == 1
        assert puller.send_message_back(message, -1)
        assert puller.generation(mq) > 0


async def test_a_pull_consumer_hands_back_and_asks_for_places_too(shared: popserver.EmbeddedBroker, topic: str) -> None:
    await asyncio.to_thread(send, shared, topic, b"x")
    async with aio.PullConsumer(shared.endpoint, topic, consume_from=FIRST) as puller:
        await puller.assign(topic)
        [message] = await puller.poll(15)
        mq = MessageQueue(topic, message.queue_id)
        assert await puller.search_offset(mq, datetime.now(UTC) + timedelta(hours=1)) == 1
        assert await puller.send_message_back(message, -1)


async def test_who_broadcasts_hands_nothing_back(consumers: QueueConsumers, tmp_path: Path) -> None:
    await consumers.server.fill(Q, ["0"])
    core = await consumers.start(model="BROADCASTING", offset_store=LocalFileOffsetStore("c", "g", tmp_path))
    await until(lambda: consumers.seen)
    with pytest.raises(PreconditionFailed, match="is BROADCASTING and hands nothing back"):
        await core.send_message_back(consumers.seen[0], 0)


# ---- Statistics ----


def test_the_process_knows_what_its_consumers_did_by_topic_and_group() -> None:
    clock = ManualClock()
    first, second, other = Statistics("stats-g", clock), Statistics("stats-g", clock), Statistics("stats-h", clock)
    first.pulled("t", 0.1, 30)
    second.pulled("t", 0.3, 30)
    first.consumed("t", 0.2, 9, 3)
    second.consumed("t", 0.4, 3, 0)
    other.consumed("u", 0.001, 6, 0)
    mine = {key: each for key, each in consumer_statistics().items() if "@stats-" in key}
    assert list(mine) == ["t@stats-g", "u@stats-h"]
    both = mine["t@stats-g"]
    assert (both.group, both.topic) == ("stats-g", "t")
    assert (both.pull_rt, both.pull_tps) == (pytest.approx(200), 1.0)
    assert (both.consume_rt, both.consume_ok_tps, both.consume_failed_tps) == (pytest.approx(300), 0.2, 0.05)
    assert both.consume_failed_msgs == 3
    assert first.by_topic()["t"].pull_tps == 0.5
    del first, second, other
    gc.collect()
    assert not [key for key in consumer_statistics() if "@stats-" in key], "it keeps no consumer"
