"""PullConsumer against a PopMQ server in this process, through the public names alone."""

from __future__ import annotations

import contextlib
import logging
import threading
from datetime import UTC, datetime, timedelta

import pytest

import popserver
from popclient import (
    BadRequest,
    ClientClosed,
    ClientConfig,
    FilterExpression,
    MessageQueue,
    MessageView,
    NotFound,
    Producer,
    PullConsumer,
    SimpleConsumer,
    aio,
)
from tests.support.pull_consumers import FIRST, send, texts
from tests.support.scripted_server import until_in_thread


def read(consumer: PullConsumer, count: int) -> list[MessageView]:
    """So many messages; the test fails if there are not."""
    seen: list[MessageView] = []
    while len(seen) < count:
        polled = consumer.poll(5)
        assert polled, f"{len(seen)} of {count} came"
        seen += polled
    return seen


@pytest.mark.row("I2")
def test_a_whole_topic_each_queue_in_its_order(shared: popserver.EmbeddedBroker, topic: str) -> None:
    send(shared.endpoint, topic, (str(number) for number in range(300)))
    with PullConsumer(shared.endpoint, f"{topic}-g", consume_from=FIRST) as consumer:
        assert consumer.assign(topic) == consumer.queues(topic) == consumer.assignment
        seen = read(consumer, 300)
        assert sorted(texts(seen), key=int) == [str(number) for number in range(300)]
        for mq in consumer.assignment:
            offsets = [message.queue_offset for message in seen if message.queue_id == mq.queue_id]
            assert offsets == list(range(consumer.position(mq)))
        assert consumer.poll(0) == []
        assert {message.topic for message in seen} == {topic}


@pytest.mark.row("H12")
def test_what_a_send_returns_is_where_a_pull_finds_it(shared: popserver.EmbeddedBroker, topic: str) -> None:
    with Producer(shared.endpoint) as producer:
        receipts = [producer.send(topic, str(number)) for number in range(20)]
    with PullConsumer(shared.endpoint, f"{topic}-g", consume_from=FIRST) as consumer:
        consumer.assign(topic)
        consumer.seek_to_end()
        for number, receipt in enumerate(receipts):
            assert receipt.queue_id is not None
            consumer.seek(MessageQueue(topic, receipt.queue_id), receipt.offset)
            [message] = consumer.poll(5, 1)
            assert (message.message_id, message.text) == (receipt.message_id, str(number))
            assert (message.queue_id, message.queue_offset) == (receipt.queue_id, receipt.offset)
            consumer.seek_to_end()


def test_progress_outlives_the_consumer(shared: popserver.EmbeddedBroker, topic: str) -> None:
    send(shared.endpoint, topic, (str(number) for number in range(40)))
    with PullConsumer(shared.endpoint, f"{topic}-g", consume_from=FIRST) as consumer:
        consumer.assign(topic)
        first = read(consumer, 25)
        consumer.commit()
        places = {mq: consumer.position(mq) for mq in consumer.assignment}
        assert {mq: consumer.committed(mq) for mq in consumer.assignment} == places
    with PullConsumer(shared.endpoint, f"{topic}-g") as consumer:
        consumer.assign(topic)
        assert {mq: consumer.position(mq) for mq in consumer.assignment} == places
        rest = read(consumer, 40 - len(first))
    assert sorted(texts(first + rest), key=int) == [str(number) for number in range(40)]


@pytest.mark.row("I1")
def test_a_new_group_begins_at_the_end_even_of_a_young_topic(shared: popserver.EmbeddedBroker, topic: str) -> None:
    send(shared.endpoint, topic, ["old"] * 100)
    with PullConsumer(shared.endpoint, f"{topic}-g") as consumer:
        consumer.assign(topic)
        assert consumer.poll(0) == []
        send(shared.endpoint, topic, ["new"])
        assert texts(consumer.poll(5)) == ["new"]


@pytest.mark.parametrize(
    "old_name",
    [
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
    ],
)
@pytest.mark.row("I1")
def test_three_old_names_mean_the_end(shared: popserver.EmbeddedBroker, topic: str, old_name: str) -> None:
    send(shared.endpoint, topic, ["old"] * 10)
    with PullConsumer(shared.endpoint, f"{topic}-g", consume_from=old_name) as consumer:
        assert sum(consumer.position(mq) for mq in consumer.assign(topic)) == 10


@pytest.mark.row("I3")
def test_from_a_time_on() -> None:
    """Messages a second before T, at T, and a second after."""
    with popserver.embedded(manual_clock=True) as broker:
        for body in ("before", "at", "after"):
            broker.clock.advance("1s")
            if body == "at":
                moment = datetime.fromtimestamp(broker.clock.now_ms() / 1000, UTC)
            send(broker.endpoint, "flights", [body])
        for consume_from, consume_timestamp in (("CONSUME_FROM_TIMESTAMP", moment), (FIRST, None)):
            options = {"consume_from": consume_from, "consume_timestamp": consume_timestamp}
            with PullConsumer(broker.endpoint, f"g-{consume_from}", **options) as consumer:  # type: ignore[arg-type]
                consumer.assign("flights")
                if consume_from == FIRST:
                    consumer.seek_to_time(moment)
                assert sorted(texts(read(consumer, 2))) == ["after", "at"]
                consumer.seek_to_time(moment + timedelta(seconds=2))
                assert consumer.poll(0) == []
                consumer.seek_to_time(moment - timedelta(days=1))
                assert sorted(texts(read(consumer, 3))) == ["after", "at", "before"]


def test_by_tags_and_by_sql(shared: popserver.EmbeddedBroker, topic: str) -> None:
    send(shared.endpoint, topic, ["a1", "a2"], tag="A")
    send(shared.endpoint, topic, ["b1"], tag="B")
    for wanted, expected in (("A", ["a1", "a2"]), (FilterExpression.sql("TAGS IN ('B')"), ["b1"])):
        group = f"{topic}-{len(expected)}"
        with PullConsumer(shared.endpoint, group, filters={topic: wanted}, consume_from=FIRST) as consumer:
            consumer.assign(topic)
            assert sorted(texts(read(consumer, len(expected)))) == expected
            until_in_thread(lambda consumer=consumer: sum(map(consumer.position, consumer.assignment)) == 3)


def test_a_filter_that_the_server_refuses_is_told_by_poll(shared: popserver.EmbeddedBroker, topic: str) -> None:
    send(shared.endpoint, topic, ["a"])
    filters = {topic: FilterExpression.sql("a >")}
    with PullConsumer(shared.endpoint, f"{topic}-g", filters=filters) as consumer:
        consumer.assign(topic)
        with pytest.raises(BadRequest, match="ILLEGAL_FILTER_EXPRESSION"):
            consumer.poll(5)


# ---- Bad input ----


@pytest.mark.parametrize(("asked", "told"), [(999, 3), (3, 3)])
def test_an_offset_beyond_the_end_goes_on_at_the_end(
    shared: popserver.EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture, asked: int, told: int
) -> None:
    with PullConsumer(shared.endpoint, f"{topic}-g") as consumer:
        mq = MessageQueue(topic, 0)
        fill_queue(shared, mq, 3)
        with caplog.at_level(logging.WARNING, "popclient"):
            consumer.assign([mq])
            consumer.seek(mq, asked)
            until_in_thread(lambda: consumer.position(mq) == told)
        fill_queue(shared, mq, 1)
        [message] = consumer.poll(5)
        assert message.queue_offset == told
        assert (f"{mq} has no offset {asked}; going on from {told}" in caplog.text) is (asked != told)


def test_an_offset_below_the_oldest_goes_on_there(topic: str) -> None:
    with popserver.embedded(manual_clock=True, retention="1h") as broker:
        mq = MessageQueue(topic, 0)
        fill_queue(broker, mq, 5)
        broker.clock.advance("2h")
        fill_queue(broker, mq, 2)
        broker.clock.advance("1m")
        with PullConsumer(broker.endpoint, "g", consume_from=FIRST) as consumer:
            consumer.assign([mq])
            consumer.seek(mq, 1)
            assert [message.queue_offset for message in read(consumer, 2)] == [5, 6]
            consumer.seek_to_beginning(mq)
            assert consumer.position(mq) == 5


@pytest.mark.parametrize(
    ("wrong", "kind", "sentence"),
    [
        (lambda c, mq: c.seek(mq, -1), ValueError, "offset is -1; it must be at least 0"),
        (lambda c, mq: c.seek(mq, 1.5), TypeError, r"offset is 1\.5; it must be a whole number"),
        (lambda c, mq: c.seek(MessageQueue(mq.topic, 3), 0), ValueError, "is not assigned; assigned are"),
        (lambda c, mq: c.position(MessageQueue("other", 0)), ValueError, "other:0 is not assigned"),
        (lambda c, mq: c.pause(MessageQueue("other", 0)), ValueError, "other:0 is not assigned"),
        (lambda c, mq: c.commit({mq: -1}), ValueError, "the offset of .*:0 is -1; it must be at least 0"),
        (lambda c, mq: c.commit({mq: 1}), ValueError, "offset 1 of .* is beyond what poll has returned"),
        (lambda c, mq: c.commit([mq]), TypeError, "commit takes offsets by queue"),
        (lambda c, mq: c.assign([MessageQueue(mq.topic, 99)]), NotFound, "has no queue 99; it has"),
        (lambda c, mq: c.assign([MessageQueue(mq.topic, -1)]), ValueError, "queue_id is -1"),
        (lambda c, mq: c.assign([(mq.topic, 0)]), TypeError, "assign takes topics and queues"),
        (lambda c, mq: c.assign(7), TypeError, "assign takes topics and queues, .* not 7"),
        (lambda c, mq: c.assign("a b"), BadRequest, "ILLEGAL_TOPIC"),
        (lambda c, mq: c.poll(-1), ValueError, "timeout is -1"),
        (lambda c, mq: c.poll(1, 0), ValueError, "max_messages is 0"),
        (lambda c, mq: c.seek_to_time(datetime(2025, 1, 1)), ValueError, "has no time zone"),  # noqa: DTZ001
        (lambda c, mq: c.seek_to_time("yesterday"), TypeError, "must be an aware datetime"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(
    shared: popserver.EmbeddedBroker, wrong: object, kind: type[Exception], sentence: str
) -> None:
    mq = MessageQueue("bad-input", 0)
    with PullConsumer(shared.endpoint, "bad-input") as consumer:
        consumer.assign([mq])
        place = consumer.position(mq)
        with pytest.raises(kind, match=sentence):
            wrong(consumer, mq)  # type: ignore[operator]
        assert (consumer.assignment, consumer.position(mq), consumer.committed(mq)) == ([mq], place, None)


def test_a_group_of_message_granularity_is_refused_by_name(shared: popserver.EmbeddedBroker, topic: str) -> None:
    send(shared.endpoint, topic, ["a"])
    with SimpleConsumer(shared.endpoint, f"{topic}-pop", topic) as simple:
        simple.ack(simple.receive())
    with PullConsumer(shared.endpoint, f"{topic}-pop") as consumer:
        with pytest.raises(BadRequest, match=f"consumer group '{topic}-pop' consumes in mode POP"):
            consumer.assign([MessageQueue(topic, 0)])
        assert consumer.assignment == []


# ---- Life ----


def test_threads_share_one_consumer(shared: popserver.EmbeddedBroker, topic: str) -> None:
    send(shared.endpoint, topic, (str(number) for number in range(500)))
    seen: list[str] = []
    with PullConsumer(shared.endpoint, f"{topic}-g", consume_from=FIRST) as consumer:
        consumer.assign(topic)

        def work() -> None:
            while polled := consumer.poll(0.2, 10):
                seen.extend(texts(polled))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(seen, key=int) == [str(number) for number in range(500)]


def test_iterating_in_a_thread_ends_with_the_consumer(shared: popserver.EmbeddedBroker, topic: str) -> None:
    send(shared.endpoint, topic, ["one"])
    consumer = PullConsumer(shared.endpoint, f"{topic}-g", consume_from=FIRST)
    consumer.assign(topic)
    seen: list[str] = []
    reader = threading.Thread(target=lambda: seen.extend(message.text for message in consumer))
    reader.start()
    until_in_thread(lambda: sum(map(consumer.position, consumer.assignment)) == 1)
    consumer.close()
    consumer.close()
    reader.join(60)
    assert (seen, reader.is_alive()) == (["one"], False)
    with pytest.raises(ClientClosed):
        consumer.poll(0)


async def test_for_asyncio(shared: popserver.EmbeddedBroker, topic: str) -> None:
    async with (
        aio.Producer(shared.endpoint) as producer,
        aio.PullConsumer(shared.endpoint, f"{topic}-g", auto_commit=True) as consumer,
    ):
        await consumer.assign(topic)
        await producer.send(topic, "hello")
        async for message in consumer:
            assert message.text == "hello"
            break
    async with aio.PullConsumer(shared.endpoint, f"{topic}-g") as consumer:
        assert sum([await consumer.committed(mq) or 0 for mq in await consumer.queues(topic)]) == 1


def test_a_namespace_of_its_own(shared: popserver.EmbeddedBroker, topic: str) -> None:
    inside = ClientConfig(shared.endpoint, namespace="airline")
    with Producer(inside) as producer, PullConsumer(inside, "g", consume_from=FIRST) as consumer:
        producer.send(topic, "inside")
        send(shared.endpoint, topic, ["outside"])
        consumer.assign(topic)
        [message] = read(consumer, 1)
        consumer.commit()
        assert (message.text, message.topic, consumer.poll(0)) == ("inside", topic, [])
    with PullConsumer(shared.endpoint, "g", consume_from=FIRST) as consumer:
        consumer.assign(topic)
        assert texts(read(consumer, 1)) == ["outside"]


def fill_queue(broker: popserver.EmbeddedBroker, mq: MessageQueue, count: int) -> None:
    """Sends until the queue holds that many more messages."""
    with Producer(broker.endpoint) as producer, PullConsumer(broker.endpoint, "watching") as watching:
        watching.assign([mq])
        end = watching.position(mq) + count
        while True:
            watching.seek_to_end(mq)
            if watching.position(mq) >= end:
                return
            with contextlib.suppress(NotFound):
                producer.send(mq.topic, "filling")


def test_a_refused_subscription_is_raised_and_the_one_before_stays(
    shared: popserver.EmbeddedBroker, topic: str
) -> None:
    send(shared.endpoint, topic, ["a"])
    send(shared.endpoint, f"{topic}-more", ["b"])
    filters = {f"{topic}-more": FilterExpression.sql("a >")}
    with PullConsumer(shared.endpoint, f"{topic}-g", filters=filters, consume_from=FIRST) as consumer:
        consumer.subscribe(topic)
        with pytest.raises(BadRequest, match="ILLEGAL_FILTER_EXPRESSION"):
            consumer.subscribe([topic, f"{topic}-more"])
        until_in_thread(lambda: consumer.healthy)
        assert texts(read(consumer, 1)) == ["a"]
