"""popclient against the real server, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import popserver
from popclient import (
    BadRequest,
    ClientConfig,
    FilterExpression,
    InvalidReceiptHandle,
    Message,
    MessageView,
    NotFound,
    PayloadTooLarge,
    Producer,
    SimpleConsumer,
    aio,
)
from popclient._engine.receive import Receive
from popclient.admin import Admin
from tests.support.scripted_server import until, until_in_thread


def test_one_message_there_and_back(shared: popserver.EmbeddedBroker, topic: str) -> None:
    with Producer(shared.endpoint) as producer, SimpleConsumer(shared.endpoint, "g", topic) as consumer:
        receipt = producer.send(topic, "päper", tag="UA", keys=["a", "b"], properties={"origin": "JFK"})
        [message] = consumer.receive()
        assert (message.message_id, message.queue_offset) == (receipt.message_id, receipt.offset)
        assert (message.text, message.tag, message.keys) == ("päper", "UA", ("a", "b"))
        assert (message.properties, message.delivery_attempt) == ({"origin": "JFK"}, 1)
        assert not message.corrupted
        assert message.store_timestamp is not None
        assert abs(message.store_timestamp - datetime.now(UTC)) < timedelta(minutes=1)
        consumer.ack(message)
        assert consumer.receive(await_duration=0) == []


async def test_many_at_once_each_its_own(shared: popserver.EmbeddedBroker, topic: str) -> None:
    async with (
        aio.Producer(shared.endpoint) as producer,
        aio.SimpleConsumer(shared.endpoint, "g", topic) as consumer,
    ):
        bodies = [str(number) for number in range(300)]
        receipts = await asyncio.gather(*(producer.send(topic, body) for body in bodies))
        seen: dict[str, str] = {}
        async for message in consumer:
            await consumer.ack(message)
            seen[message.text] = message.message_id
            if len(seen) == len(bodies):
                break
        assert seen == {body: receipt.message_id for body, receipt in zip(bodies, receipts, strict=True)}


def test_a_message_the_server_refuses_fails_alone(shared: popserver.EmbeddedBroker, topic: str) -> None:
    with Producer(shared.endpoint) as producer:
        results = producer.send_many([Message(topic, "1"), Message(topic, ""), Message(topic, "3")])
        assert [type(why) for _, why in results.failures] == [BadRequest]
        assert len(results.receipts) == 2
        with pytest.raises(PayloadTooLarge, match="4194304"):
            producer.send(topic, bytes(4 * 1024 * 1024 + 1))
        assert producer.send(topic, bytes(4 * 1024 * 1024))
        with pytest.raises(BadRequest, match="bad topic"):
            producer.send("bad topic", "x")


def test_the_same_message_id_is_stored_once(shared: popserver.EmbeddedBroker, topic: str) -> None:
    with Producer(shared.endpoint) as producer, Admin(shared.endpoint) as admin:
        first = producer.send(Message(topic, "x", message_id="01" + "AB" * 16))
        assert producer.send(Message(topic, "x", message_id="01" + "AB" * 16)) == first
        assert admin.get_topic(topic).message_count == 1


@pytest.mark.row("H12")
def test_the_offset_of_a_receipt_finds_the_message(shared: popserver.EmbeddedBroker, topic: str) -> None:
    with Producer(shared.endpoint) as producer, Admin(shared.endpoint) as admin:
        admin.create_topic(topic, queue_count=1)
        receipts = [producer.send(topic, str(number)) for number in range(3)]
        for receipt in receipts:
            [found] = admin.peek_messages(topic, queue_id=0, from_offset=receipt.offset, max_messages=1)
            assert found.message_id == receipt.message_id


@pytest.mark.row("L10")
def test_a_renewed_hold_kills_the_old_handle_and_burns_no_attempt(shared: popserver.EmbeddedBroker, topic: str) -> None:
    with Producer(shared.endpoint) as producer, SimpleConsumer(shared.endpoint, "g", topic) as consumer:
        producer.send(topic, "x")
        [message] = consumer.receive()
        old = MessageView(message._wire, message.invisible_until)
        consumer.change_invisible_duration(message, 60)
        with pytest.raises(InvalidReceiptHandle):
            consumer.ack(old)
        consumer.ack(message)
        with Admin(shared.endpoint) as admin:
            [state] = admin.get_message(message.message_id, topic).states
    assert state.state == "COMMIT"


async def test_what_is_given_back_comes_again_at_once_as_the_same_attempt(
    shared: popserver.EmbeddedBroker, topic: str
) -> None:
    async with aio.Producer(shared.endpoint) as producer:
        await producer.send_many([Message(topic, str(number)) for number in range(8)])
    async with aio.SimpleConsumer(shared.endpoint, "g", topic) as first:
        async for message in first:
            await first.ack(message)
            break
    seen: set[str] = set()
    async with aio.SimpleConsumer(shared.endpoint, "g", topic) as second, asyncio.timeout(60):
        while len(seen) < 7:
            for message in await second.receive():
                assert message.delivery_attempt == 1
                seen.add(message.text)
    assert message.text not in seen or len(seen) == 7


async def test_a_tag_filter_and_several_topics(shared: popserver.EmbeddedBroker, topic: str) -> None:
    other = f"{topic}-other"
    async with aio.Producer(shared.endpoint) as producer:
        await producer.send_many([Message(topic, "1", tag="a"), Message(topic, "2", tag="b"), Message(other, "3")])
    seen: set[str] = set()
    async with aio.SimpleConsumer(shared.endpoint, "g", {topic: "b || c", other: "*"}) as consumer:
        async with asyncio.timeout(60):
            async for message in consumer:
                await consumer.ack(message)
                seen.add(message.text)
                if len(seen) == 2:
                    break
        assert seen == {"2", "3"}
        assert await consumer.receive(await_duration=0) == []


@pytest.mark.row("M7")
def test_a_sql_filter(shared: popserver.EmbeddedBroker, topic: str) -> None:
    with Producer(shared.endpoint) as producer:
        for distance in ("900", "1400", "far"):
            producer.send(topic, distance, properties={"distance": distance}, tag="UA")
    wanted = FilterExpression.sql("distance > 1000 AND TAGS IN ('UA', 'DL')")
    with SimpleConsumer(shared.endpoint, "g", {topic: wanted}) as consumer:
        assert [message.text for message in consumer.receive()] == ["1400"]
        assert consumer.receive(await_duration=0) == []


@pytest.mark.row("M17")
def test_a_bad_sql_filter_is_reported_at_the_start(shared: popserver.EmbeddedBroker, topic: str) -> None:
    with Producer(shared.endpoint) as producer:
        producer.send(topic, "there it is")
    consumer = SimpleConsumer(shared.endpoint, "g", {topic: FilterExpression.sql("distance >\n'far'")})
    where = r"line 2, column 1, at the \^ in «distance > \^'far'»: > cannot compare a string"
    with pytest.raises(BadRequest, match=where) as refused:
        consumer.start()
    assert refused.value.code == 40010
    consumer.close()


@pytest.mark.row("A11")
async def test_an_idle_consumer_polls_four_times_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popclient._simple.polls.LEAST_PACE", 0.0)
    polls = _counted(monkeypatch)
    with popserver.embedded(manual_clock=True) as broker, Admin(broker.endpoint) as admin:
        async with aio.SimpleConsumer(broker.endpoint, "g", "t") as consumer:
            idle = asyncio.ensure_future(anext(aiter(consumer), None))
            for quarter in range(4):
                await until(lambda made=quarter + 1: polls() == made and admin.status().parked_polls == 1)
                await asyncio.to_thread(broker.clock.advance, "15s")
            await until(lambda: polls() == 5)  # the fifth belongs to the next minute
            assert not idle.done()
        assert await idle is None


def _counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many ReceiveMessage calls were made."""
    count = itertools.count()
    made = [0]
    original = Receive._attempt

    async def counting(self: Receive, *given: object) -> object:
        made[0] = next(count) + 1
        return await original(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Receive, "_attempt", counting)
    return lambda: made[0]


@pytest.mark.row("L3")
async def test_a_hold_that_ends_brings_the_message_again() -> None:
    with popserver.embedded(manual_clock=True) as broker:
        async with (
            aio.Producer(broker.endpoint) as producer,
            aio.SimpleConsumer(broker.endpoint, "g", "t", invisible_duration=30) as consumer,
        ):
            await producer.send("t", "x")
            [first] = await consumer.receive()
            again = asyncio.ensure_future(consumer.receive())
            await asyncio.to_thread(broker.clock.advance, "30s")
            [second] = await again
            assert (second.message_id, second.delivery_attempt) == (first.message_id, 2)
            with pytest.raises(InvalidReceiptHandle):
                await consumer.ack(first)
            await consumer.ack(second)


@pytest.mark.slow
def test_twenty_restarts_under_load_lose_nothing(tmp_path: Path) -> None:
    """U32: after every restart sends and polls go on by themselves, and every OK is still there at the end."""
    sent: set[str] = set()
    seen: set[str] = set()
    lost: list[Exception] = []
    database, ending = tmp_path / "broker.db", threading.Event()
    with popserver.embedded(database) as broker:
        port = int(broker.endpoint.rpartition(":")[2])
    config = ClientConfig(endpoints=f"127.0.0.1:{port}", request_timeout=30, on_disconnect=lost.append)
    producer = Producer(config)
    consumer = SimpleConsumer(config, "g", "t", invisible_duration=10)

    def produce() -> None:
        for number in itertools.count():
            if ending.is_set():
                return
            producer.send("t", str(number))
            sent.add(str(number))

    def consume() -> None:
        for message in consumer:
            # An attempt whose answer was lost may have acked it already; then the handle is refused or accepted again.
            with contextlib.suppress(InvalidReceiptHandle):
                consumer.ack(message)
            seen.add(message.text)

    workers = [threading.Thread(target=work, daemon=True) for work in (produce, consume)]
    for worker in workers:
        worker.start()
    for _ in range(20):
        with popserver.embedded(database, port=port):
            sent_before, seen_before = len(sent), len(seen)
            until_in_thread(lambda at=sent_before: len(sent) > at + 2)
            until_in_thread(lambda at=seen_before: len(seen) > at)
    with popserver.embedded(database, port=port):
        ending.set()
        workers[0].join(60)
        until_in_thread(lambda: seen >= sent)
        consumer.close()
        producer.close()
        workers[1].join(60)
    assert not any(worker.is_alive() for worker in workers)
    assert lost


# ---- Administration ----


def test_topics(shared: popserver.EmbeddedBroker, topic: str) -> None:
    with Admin(shared.endpoint) as admin:
        made = admin.create_topic(topic, queue_count=3, accept_message_types=["NORMAL"])
        assert (made.name, made.queue_count, made.accept_message_types) == (topic, 3, ("NORMAL",))
        assert admin.update_topic(topic, queue_count=5).queue_count == 5
        assert [queue.id for queue in admin.get_topic(topic).queues] == [0, 1, 2, 3, 4]
        assert topic in [each.name for each in admin.list_topics()]
        with pytest.raises(BadRequest):
            admin.create_topic(topic)
        admin.delete_topic(topic)
        with pytest.raises(NotFound, match=topic):
            admin.get_topic(topic)
        with pytest.raises(ValueError, match="'odd' is not known"):
            admin.create_topic(topic, accept_message_types=["odd"])


def test_groups(shared: popserver.EmbeddedBroker, topic: str) -> None:
    group = f"group-of-{topic}"
    with Admin(shared.endpoint) as admin:
        made = admin.create_group(
            group, max_attempts=3, retry_intervals=[1, timedelta(seconds=5)], consume_from="LATEST", history="all"
        )
        assert (made.name, made.max_attempts, made.consume_from, made.history) == (group, 3, "LATEST", "all")
        assert made.retry_intervals == (timedelta(seconds=1), timedelta(seconds=5))
        assert admin.update_group(group, max_attempts=4).max_attempts == 4
        assert admin.get_group(group).retry_intervals == made.retry_intervals
        assert group in [each.name for each in admin.list_groups()]
        admin.delete_group(group)
        with pytest.raises(NotFound, match=group):
            admin.get_group(group)


def test_looking_at_messages_and_dead_letters(shared: popserver.EmbeddedBroker, topic: str) -> None:
    group = f"group-of-{topic}"
    with (
        Admin(shared.endpoint) as admin,
        Producer(shared.endpoint) as producer,
        SimpleConsumer(shared.endpoint, group, topic) as consumer,
    ):
        producer.send_many([Message(topic, str(number)) for number in range(5)])
        assert sorted(message.text for message in admin.peek_messages(topic)) == ["0", "1", "2", "3", "4"]
        message, *_ = consumer.receive(1)
        consumer.forward_to_dead_letter_queue(message)
        facts = admin.get_message(message.message_id)
        assert facts.message.body == message.body
        assert [(state.group, state.state) for state in facts.states] == [(group, "DLQ")]
        [letter] = admin.dead_letters(group)
        assert (letter.topic, letter.group, letter.delivery_attempt) == (topic, group, 1)
        assert letter.origin_message_id == message.message_id
        assert letter.message is not None
        assert letter.message.body == message.body
        assert admin.get_dead_letter(group, letter.message.message_id).id == letter.id
        lag = {each.topic: each for each in admin.get_group(group).lag}[topic]
        assert (lag.ready, lag.dead_letters) == (4, 1)


def test_status(shared: popserver.EmbeddedBroker, topic: str) -> None:
    with Admin(shared.endpoint) as admin, Producer(shared.endpoint) as producer:
        before = admin.status()
        producer.send(topic, "x")
        after = admin.status()
    assert (after.messages - before.messages, after.topics - before.topics) == (1, 1)
    assert after.started_at <= after.now
    assert after.version
    assert after.schema_revision
