"""Queue push consumers against the server: shares, retries, order, restarts."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter, defaultdict
from typing import Any

import grpc
import pytest

import popserver
from popclient import (
    BadRequest,
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    FilterExpression,
    Message,
    MessageView,
    OrderlyListener,
    Producer,
    QueuePushConsumer,
    SimpleConsumer,
    aio,
)
from popproto.v1 import admin_pb2, admin_pb2_grpc
from popproto.v2 import definition_pb2 as pb
from tests.support.scripted_server import until, until_in_thread

SUCCESS, LATER = ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeConcurrentlyStatus.RECONSUME_LATER
FIRST = "CONSUME_FROM_FIRST_OFFSET"


def send(broker: popserver.EmbeddedBroker, topic: str, texts: Any) -> None:
    with Producer(broker.endpoint) as producer:
        producer.send_many([Message(topic, text) for text in texts]).raise_for_failures()


@pytest.mark.row("H3")
def test_threads_consume_everything_once_and_a_restart_goes_on_there(
    shared: popserver.EmbeddedBroker, topic: str
) -> None:
    send(shared, topic, map(str, range(500)))
    seen: Counter[str] = Counter()

    def listener(messages: Any, _: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        seen.update(message.text for message in messages)
        return SUCCESS

    with QueuePushConsumer(shared.endpoint, topic, topic, listener, consume_from=FIRST) as consumer:
        until_in_thread(lambda: len(seen) == 500)
        assert [mq.topic for mq in consumer.message_queues].count(topic) >= 1
        assert consumer.statistics()[topic].consume_failed_msgs == 0
    send(shared, topic, ["after"])
    with QueuePushConsumer(shared.endpoint, topic, topic, listener, consume_from=FIRST):
        until_in_thread(lambda: seen["after"] == 1)
    assert set(seen.values()) == {1}


@pytest.mark.row("I7")
async def test_a_new_group_on_a_young_topic_begins_where_it_was_asked_to(
    shared: popserver.EmbeddedBroker, topic: str
) -> None:
    seen: list[str] = []

    async def listener(messages: Any, _: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        seen.extend(message.text for message in messages)
        return SUCCESS

    await asyncio.to_thread(send, shared, topic, map(str, range(10)))
    async with aio.QueuePushConsumer(shared.endpoint, topic, topic, listener) as consumer:
        await until(lambda: sum(mq.topic == topic for mq in consumer.message_queues) == 8)
        await asyncio.to_thread(send, shared, topic, ["new"])
        await until(lambda: seen)
    assert seen == ["new"]
    # What it began with is kept: a restart skips nothing that came meanwhile.
    await asyncio.to_thread(send, shared, topic, ["between"])
    async with aio.QueuePushConsumer(shared.endpoint, topic, topic, listener):
        await until(lambda: seen == ["new", "between"])


@pytest.mark.row("G1")
async def test_three_members_share_a_topic(shared: popserver.EmbeddedBroker, topic: str) -> None:
    seen: list[Counter[str]] = [Counter(), Counter(), Counter()]

    def listener_of(member: int) -> Any:
        async def listener(messages: Any, _: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
            seen[member].update(message.text for message in messages)
            return SUCCESS

        return listener

    await asyncio.to_thread(send, shared, topic, ["first"])
    members = [aio.QueuePushConsumer(shared.endpoint, topic, topic, listener_of(each)) for each in range(3)]
    for member in members:
        await member.start()

    def shares() -> list[list[int]]:
        return [[mq.queue_id for mq in member.message_queues if mq.topic == topic] for member in members]

    def settled() -> bool:
        return sorted(map(len, shares())) == [2, 3, 3] and sorted(itertools.chain(*shares())) == list(range(8))

    await until(settled)
    await asyncio.to_thread(send, shared, topic, map(str, range(999)))
    await until(lambda: len(set().union(*seen)) >= 999)
    everything = seen[0] + seen[1] + seen[2]
    assert set(everything) - {"first"} == set(map(str, range(999)))
    assert {everything[text] for text in map(str, range(999))} == {1}
    for member in members:
        await member.close()


@pytest.mark.row("E9")
@pytest.mark.row("E14")
async def test_what_one_member_fails_at_comes_again_by_the_retry_topic_perhaps_to_another() -> None:
    with popserver.embedded(manual_clock=True) as broker:
        seen: list[tuple[str, MessageView]] = []

        def listener_of(name: str) -> Any:
            async def listener(messages: Any, _: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                seen.extend((name, message) for message in messages)
                return LATER if len(seen) == 1 else SUCCESS

            return listener

        await asyncio.to_thread(send, broker, "t", ["x"])
        a = aio.QueuePushConsumer(broker.endpoint, "g", "t", listener_of("a"), consume_from=FIRST)
        await a.start()
        await until(lambda: len(seen) == 1 and a.statistics()["t"].consume_failed_msgs == 1)
        await until(lambda: not _sending_back(a))
        await a.close()
        b = aio.QueuePushConsumer(broker.endpoint, "g", "t", listener_of("b"), consume_from=FIRST)
        async with b:
            await until(lambda: b.message_queues)
            assert len(seen) == 1
            await asyncio.to_thread(broker.clock.advance, "10s")
            await until(lambda: len(seen) == 2)
        assert [(name, view.topic, view.text, view.delivery_attempt) for name, view in seen] == [
            ("a", "t", "x", 1),
            ("b", "t", "x", 2),
        ]


def _sending_back(consumer: aio.QueuePushConsumer) -> bool:
    return any(not pq.is_empty for _, pq in consumer._core.parts.owned())


@pytest.mark.row("E15")
@pytest.mark.row("E16")
async def test_a_negative_delay_level_makes_a_dead_letter(shared: popserver.EmbeddedBroker, topic: str) -> None:
    async def listener(_: Any, context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        context.delay_level_when_next_consume = -1
        return LATER

    await asyncio.to_thread(send, shared, topic, ["x"])
    async with aio.QueuePushConsumer(shared.endpoint, topic, topic, listener, consume_from=FIRST) as consumer:
        await until(lambda: consumer.statistics().get(topic) and not _sending_back(consumer))

    def dead() -> MessageView:
        with SimpleConsumer(shared.endpoint, f"{topic}-dead", f"%DLQ%{topic}") as reader:
            [letter] = reader.receive(await_duration=5)
            return letter

    letter = await asyncio.to_thread(dead)
    assert letter.text == "x"
    assert letter.dead_letter_queue is not None and letter.dead_letter_queue.topic == topic


@pytest.mark.row("F6")
async def test_order_survives_a_hand_over(shared: popserver.EmbeddedBroker, topic: str) -> None:
    seen: defaultdict[int, list[int]] = defaultdict(list)
    busy: Counter[int] = Counter()
    overlaps: list[int] = []

    async def consume(messages: Any, _: Any) -> ConsumeOrderlyStatus:
        [message] = messages
        queue = message.queue_id
        busy[queue] += 1
        if busy[queue] > 1:
            overlaps.append(queue)
        await asyncio.sleep(0.002)
        seen[queue].append(message.queue_offset)
        busy[queue] -= 1
        return ConsumeOrderlyStatus.SUCCESS

    def make() -> aio.QueuePushConsumer:
        return aio.QueuePushConsumer(shared.endpoint, topic, topic, OrderlyListener(consume), consume_from=FIRST)

    await asyncio.to_thread(send, shared, topic, map(str, range(400)))
    first, second = make(), make()
    await first.start()
    await until(lambda: sum(map(len, seen.values())) > 50)
    await second.start()
    await until(lambda: any(mq.topic == topic for mq in second.message_queues))
    await until(lambda: len({(queue, offset) for queue in seen for offset in seen[queue]}) == 400)
    await first.close()
    await second.close()
    assert overlaps == []
    for offsets in seen.values():
        fresh = list(dict.fromkeys(offsets))
        assert fresh == sorted(fresh) == list(range(len(fresh)))


def test_close_in_the_listener_and_threads_named_after_the_group(shared: popserver.EmbeddedBroker, topic: str) -> None:
    send(shared, topic, map(str, range(50)))
    names: set[str] = set()
    ended = threading.Event()

    def listener(messages: Any, _: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        names.add(threading.current_thread().name)
        consumer.close()
        ended.set()
        return SUCCESS

    consumer = QueuePushConsumer(shared.endpoint, topic, topic, listener, consume_from=FIRST, consume_threads=3)
    consumer.run()
    assert ended.is_set() and consumer.state == "SHUTDOWN_ALREADY"
    assert names <= {f"ConsumeMessageThread_{topic}_{number}" for number in (1, 2, 3)}


@pytest.mark.row("H13")
@pytest.mark.user("U20")
async def test_an_operators_reset_is_heeded_by_members_that_are_online(
    shared: popserver.EmbeddedBroker, topic: str
) -> None:
    seen: Counter[str] = Counter()

    async def listener(messages: Any, _: Any) -> ConsumeConcurrentlyStatus:
        seen.update(message.text for message in messages)
        return SUCCESS

    await asyncio.to_thread(send, shared, topic, map(str, range(100)))
    members = [aio.QueuePushConsumer(shared.endpoint, topic, topic, listener, consume_from=FIRST) for _ in range(2)]
    for member in members:
        await member.start()
    await until(lambda: all(any(mq.topic == topic for mq in member.message_queues) for member in members))
    await until(lambda: len(seen) == 100)
    before = Counter(seen)
    await asyncio.to_thread(reset_to_beginning, shared, topic)
    await until(lambda: all(seen[text] > before[text] for text in map(str, range(100))))
    for member in members:
        await member.close()
    again = seen.copy()
    async with aio.QueuePushConsumer(shared.endpoint, topic, topic, listener) as late:
        await until(lambda: late.message_queues)
        await asyncio.to_thread(send, shared, topic, ["after"])
        await until(lambda: seen["after"] == 1)
    assert seen - again == Counter({"after": 1})


def reset_to_beginning(broker: popserver.EmbeddedBroker, name: str) -> None:
    """The group of the topic's name, in that topic."""
    with grpc.insecure_channel(broker.endpoint) as channel:
        request = admin_pb2.ResetOffsetsRequest(
            group=pb.Resource(name=name), topic=pb.Resource(name=name), policy=pb.BEGINNING
        )
        answer = admin_pb2_grpc.AdminStub(channel).ResetOffsets(request)
    assert answer.status.code == pb.OK, answer.status


async def test_a_refused_subscription_is_raised_and_the_consumer_goes_on(
    shared: popserver.EmbeddedBroker, topic: str
) -> None:
    heard: list[str] = []

    async def listener(messages: Any, _: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        heard.extend(message.text for message in messages)
        return SUCCESS

    send(shared, topic, ["before"])
    send(shared, f"{topic}-more", ["unwanted"])
    async with aio.QueuePushConsumer(shared.endpoint, topic, topic, listener, consume_from=FIRST) as consumer:
        await until(lambda: heard == ["before"], 20)
        with pytest.raises(BadRequest, match="ILLEGAL_FILTER_EXPRESSION"):
            await consumer.subscribe(f"{topic}-more", FilterExpression.sql("a >"))
        await until(lambda: consumer.healthy)
        async with aio.Producer(shared.endpoint) as producer:
            await producer.send(Message(topic, "after"))
        await until(lambda: heard == ["before", "after"], 20)


async def test_subscriptions_that_are_asked_for_together_are_judged_one_by_one(
    shared: popserver.EmbeddedBroker, topic: str
) -> None:
    async def listener(messages: Any, _: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        return SUCCESS

    for name in (topic, f"{topic}-good", f"{topic}-bad", f"{topic}-more"):
        send(shared, name, ["here"])
    async with aio.QueuePushConsumer(shared.endpoint, topic, topic, listener, consume_from=FIRST) as consumer:
        good, bad, more = await asyncio.gather(
            consumer.subscribe(f"{topic}-good"),
            consumer.subscribe(f"{topic}-bad", FilterExpression.sql("a >")),
            consumer.subscribe(f"{topic}-more"),
            return_exceptions=True,
        )
        assert isinstance(bad, BadRequest)
        assert (good, more) == (None, None)
        wanted = {topic, f"{topic}-good", f"{topic}-more", f"%RETRY%{topic}"}
        await until(lambda: {mq.topic for mq in consumer.message_queues} == wanted, 60)
