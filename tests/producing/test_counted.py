"""What a server counts of messages that producers send, by topic and type, and of what becomes of pending ones."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from popserver.model.names import Resource
from popserver.model.topic import MessageType, NewTopic
from popserver.producing.rules import Resolution
from tests.support.builders import TOPIC, a_message
from tests.support.running_broker import RunningBroker, running_broker

ALL_TYPES = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)
MINUTE = 60_000


async def topic_of_all(broker: RunningBroker) -> int:
    await broker.broker.catalog.create_topic(NewTopic(TOPIC, 1, ALL_TYPES))
    return (await broker.broker.catalog.topic(TOPIC)).topic_id


def delayed(broker: RunningBroker, by_ms: int, **more: Any) -> Any:
    at_ms = broker.clock.now_ms() + by_ms
    return a_message(message_type=MessageType.DELAY, deliver_at_ms=at_ms, **more)


def sizes(broker: RunningBroker) -> dict[tuple[int, MessageType], tuple[int, float]]:
    """How many messages, and how many bytes."""
    sent = broker.broker.engine.meters.sent
    return {key: (each.sizes.count, each.sizes.total) for key, each in sent.items()}


async def test_messages_of_each_type_have_counts_of_their_own(broker: RunningBroker) -> None:
    topic_id = await topic_of_all(broker)
    other = Resource("", "other")
    await broker.send([a_message(body=bytes(10)), a_message(body=bytes(20))])
    await broker.send([a_message(body=bytes(1_024)), a_message(body=bytes(1_025)), a_message(other, body=b"x")][:2])
    await broker.send([a_message(other, body=b"x")])
    await broker.send([a_message(body=bytes(5), message_group="g", message_type=MessageType.FIFO)])
    await broker.send([delayed(broker, MINUTE, body=bytes(7)), delayed(broker, -1, body=bytes(9))])
    await broker.send([a_message(body=bytes(8), message_type=MessageType.TRANSACTION)] * 1)
    other_id = (await broker.broker.catalog.topic(other)).topic_id
    assert sizes(broker) == {
        (topic_id, MessageType.NORMAL): (4, 2_079),
        (topic_id, MessageType.FIFO): (1, 5),
        (topic_id, MessageType.DELAY): (2, 16),
        (topic_id, MessageType.TRANSACTION): (1, 8),
        (other_id, MessageType.NORMAL): (1, 1),
    }
    counted = broker.broker.engine.meters.sent[topic_id, MessageType.NORMAL].sizes
    assert counted.counts[:3] == [3, 1, 0]


async def test_refused_messages_are_not_counted(broker: RunningBroker) -> None:
    topic_id = await topic_of_all(broker)
    outcomes = await broker.broker.send([a_message(body=b""), a_message(body=b"ok")])
    assert len(outcomes) == 2
    assert sizes(broker) == {(topic_id, MessageType.NORMAL): (1, 2)}


async def test_delays_are_counted_when_sent_and_messages_when_they_enter(broker: RunningBroker) -> None:
    topic_id = await topic_of_all(broker)
    await broker.send([delayed(broker, MINUTE), delayed(broker, 2 * MINUTE)])
    await broker.send([delayed(broker, 3 * MINUTE), delayed(broker, -5)])
    timed = broker.broker.engine.meters.timed[topic_id]
    assert (timed.delays.count, timed.delays.total, timed.entered) == (3, 360.0, 0)
    await broker.advance(2 * MINUTE)
    assert timed.entered == 2
    await broker.advance(MINUTE)
    assert (timed.delays.count, timed.delays.total, timed.entered) == (3, 360.0, 3)
    assert sizes(broker) == {(topic_id, MessageType.DELAY): (4, 16)}, "counted once, when they were sent"


async def test_one_that_is_due_once_it_is_stored_has_had_no_delay(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = await topic_of_all(broker)
    submit = broker.broker.engine.writer.submit

    async def slow(request: Any, **more: Any) -> Any:
        result = await submit(request, **more)
        broker.clock._now_ms += 5
        return result

    monkeypatch.setattr(broker.broker.engine.writer, "submit", slow)
    await broker.send([delayed(broker, 5), delayed(broker, 1)])
    delays = broker.broker.engine.meters.timed[topic_id].delays
    assert (delays.count, delays.total) == (2, 0.0)


async def test_messages_of_users_transactions_are_counted_when_they_enter(postgres_url: str) -> None:
    async with running_broker(postgres_url) as broker:
        topic_id = await topic_of_all(broker)
        now_ms = broker.clock.now_ms()
        with broker.broker.engine.database.writing.begin() as conn:
            for body, due_ms in (("one", None), ("late", now_ms - 5), ("later", now_ms + MINUTE)):
                conn.execute(
                    text("SELECT popmq_enqueue('orders', CAST(:body AS bytea), deliver_at_ms => :due_ms)"),
                    {"body": body, "due_ms": due_ms},
                )
            conn.execute(text("UPDATE pending SET stored_at_ms = :now_ms"), {"now_ms": now_ms})
        broker.broker.producing.pending.check_due()
        await broker.advance(0)
        timed = broker.broker.engine.meters.timed[topic_id]
        assert (timed.delays.count, timed.delays.total, timed.entered) == (1, 0.0, 1)
        assert sizes(broker) == {(topic_id, MessageType.NORMAL): (1, 3), (topic_id, MessageType.DELAY): (1, 4)}
        await broker.advance(MINUTE)
        assert (timed.delays.count, timed.delays.total, timed.entered) == (2, 60.0, 2)
        assert sizes(broker)[topic_id, MessageType.DELAY] == (2, 9)


@pytest.mark.parametrize("resolution", Resolution)
async def test_the_first_decision_about_a_half_message_is_counted(
    broker: RunningBroker, resolution: Resolution
) -> None:
    topic_id = await topic_of_all(broker)
    for _ in range(2):
        (half,) = await broker.send([a_message(message_type=MessageType.TRANSACTION)])
        await broker.advance(2_000)
        for _ in range(2):
            end = broker.broker.producing.transactions.end
            await end(TOPIC, half.message_id, half.transaction_id, resolution)
    ended = broker.broker.engine.meters.ended[topic_id]
    is_commit = resolution is Resolution.COMMIT
    expected = (2, 4.0, 0) if is_commit else (0, 0.0, 2)
    assert (ended.ages.count, ended.ages.total, ended.rollbacks) == expected
    assert broker.broker.engine.meters.timed == {}
