"""Complaints of other brokers' users (docs/requirements.md#complaints). None may be true of this broker.

Whole servers on both databases, real clients. Some complaints are answered in the room that prevents them, by tests
that carry the same mark.
"""

from __future__ import annotations

import copy
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

import popserver
from popclient import ConsumeResult, InvalidReceiptHandle, Message, MessageView, Producer, PushConsumer, SimpleConsumer
from popclient import sql as popsql
from popclient._version import new_client_id
from popclient.admin import Admin
from popserver import EmbeddedBroker
from tests.support.running_broker import watched
from tests.support.scripted_server import until_in_thread as until
from tests.users.helpers import (
    GROUP,
    TOPIC,
    Start,
    everything,
    look,
    make_topic,
    overdue,
    parked,
    pass_time,
    send,
    states,
)

SUCCESS, FAILURE = ConsumeResult.SUCCESS, ConsumeResult.FAILURE


@pytest.mark.user("U6")
def test_what_was_not_acked_comes_again_and_anyone_can_tell_why(broker: EmbeddedBroker) -> None:
    ids = send(broker, *map(str, range(10)))
    with SimpleConsumer(broker.endpoint, GROUP, TOPIC) as consumer, Admin(broker.endpoint) as admin:
        for attempt in range(1, 4):
            held = consumer.receive(invisible_duration=30)
            assert sorted(each.message_id for each in held) == sorted(ids)
            assert {each.delivery_attempt for each in held} == {attempt}
            assert consumer.client_id in admin.why(ids[0], GROUP).sentence
            broker.clock.advance("29999ms")
            assert states(broker) == Counter(INFLIGHT=10)
            broker.clock.advance("1ms")
            assert states(broker) == Counter(READY=10)
        consumer.ack(consumer.receive())
    assert states(broker) == Counter(COMMIT=10)


@pytest.mark.user("U7")
@pytest.mark.row("L15")
def test_a_push_consumers_hold_does_not_end_while_its_listener_works(broker: EmbeddedBroker) -> None:
    """Longer than twice the hold of the reference, and nobody renews anything."""
    calls: list[int] = []
    finish = threading.Event()

    def listener(message: MessageView) -> ConsumeResult:
        calls.append(message.delivery_attempt)
        finish.wait(60)
        return SUCCESS

    send(broker, "long")
    with PushConsumer(broker.endpoint, GROUP, TOPIC, listener) as consumer:
        until(lambda: calls)
        before = everything(broker)
        pass_time(broker, 150)
        assert everything(broker) == before
        finish.set()
        until(lambda: consumer.cached.messages == 0)
    assert states(broker) == Counter(COMMIT=1)
    assert calls == [1]


@pytest.mark.user("U8")
def test_an_ack_with_a_handle_that_was_replaced_is_an_error(broker: EmbeddedBroker) -> None:
    send(broker, "1")
    with SimpleConsumer(broker.endpoint, GROUP, TOPIC) as consumer:
        (message,) = consumer.receive()
        old = copy.copy(message)
        consumer.change_invisible_duration(message, 60)
        before = everything(broker)
        with pytest.raises(
            InvalidReceiptHandle, match=r"a newer hold of attempt 1 .* Use the newest handle"
        ) as refused:
            consumer.ack(old)
        assert refused.value.code == 40013
        assert everything(broker) == before
        # The message knows its newest handle: the natural thing is the right one.
        consumer.ack(message)
    assert states(broker) == Counter(COMMIT=1)


@pytest.mark.user("U9")
def test_an_extension_is_no_retry(broker: EmbeddedBroker) -> None:
    send(broker, "1")
    with SimpleConsumer(broker.endpoint, GROUP, TOPIC) as consumer:
        (message,) = consumer.receive(invisible_duration=10)
        for _ in range(20):
            broker.clock.advance("9s")
            consumer.change_invisible_duration(message, 10)
        assert look(broker, "SELECT attempt, state FROM delivery") == [(1, "INFLIGHT")]
        assert look(broker, "SELECT COUNT(*) FROM message") == [(1,)]
        broker.clock.advance("10s")
        assert [each.delivery_attempt for each in consumer.receive()] == [2]


@pytest.mark.user("U10")
def test_order_follows_the_data_and_needs_no_switch(broker: EmbeddedBroker) -> None:
    """Nobody told the group anything: its first consumer makes it."""
    make_topic(broker, "FIFO")
    send(broker, "1", "2", "3", message_group="g")
    with (
        SimpleConsumer(broker.endpoint, GROUP, TOPIC) as one,
        SimpleConsumer(broker.endpoint, GROUP, TOPIC) as other,
        ThreadPoolExecutor() as pool,
    ):
        (first,) = one.receive(1)
        poll = pool.submit(other.receive, 1)
        parked(broker)
        one.ack(first)
        (second,) = poll.result(60)
        poll = pool.submit(one.receive, 1)
        parked(broker)
        other.ack(second)
        (third,) = poll.result(60)
        assert [each.text for each in (first, second, third)] == ["1", "2", "3"]
        one.ack(third)
    assert states(broker) == Counter(COMMIT=3)


@pytest.mark.user("U12")
@pytest.mark.row("D10")
def test_a_listener_that_takes_too_long_does_not_multiply_its_message(broker: EmbeddedBroker) -> None:
    calls: list[int] = []
    late = threading.Event()

    def listener(message: MessageView) -> ConsumeResult:
        calls.append(message.delivery_attempt)
        if message.delivery_attempt < 3:
            late.wait(60)
        return SUCCESS

    send(broker, "slow")
    with PushConsumer(broker.endpoint, GROUP, TOPIC, listener, consumption_timeout=0.05) as consumer:
        for attempt, interval in ((1, "10s"), (2, "30s")):
            until(lambda: states(broker) == Counter(WAITING_RETRY=1))
            assert calls == list(range(1, attempt + 1))
            assert look(broker, "SELECT COUNT(*) FROM delivery") == [(1,)]
            broker.clock.advance(interval)
        until(lambda: states(broker) == Counter(COMMIT=1))
        late.set()  # both late ones succeed now, and it means nothing any more
        until(lambda: consumer.cached.messages == 0)
    assert states(broker) == Counter(COMMIT=1)
    assert calls == [1, 2, 3]
    assert look(broker, "SELECT COUNT(*) FROM message") == [(1,)]


@pytest.mark.user("U12")
def test_no_two_clients_have_the_same_name() -> None:
    assert len({new_client_id() for _ in range(10_000)}) == 10_000


@pytest.mark.user("U14")
def test_nothing_stays_in_nobodys_hands(start: Start) -> None:
    """Whoever held it, and though no server ran when its time came: it is there again, and nothing is overdue."""
    with start() as broker:
        send(broker, *map(str, range(30)))
        for invisible in (10, 3_600, 12 * 3_600):
            with SimpleConsumer(broker.endpoint, GROUP, TOPIC) as consumer:
                consumer.receive(8, invisible_duration=invisible)
        pushed = threading.Event()

        def listener(_: MessageView) -> ConsumeResult:
            pushed.set()
            return FAILURE

        with PushConsumer(broker.endpoint, GROUP, TOPIC, listener):
            pushed.wait(60)
            until(lambda: states(broker) == Counter(INFLIGHT=24, WAITING_RETRY=6))
        assert overdue(broker) == timedelta(0)
        now_ms = broker.clock.now_ms()
    with start() as broker:
        broker.clock.advance(now_ms - broker.clock.now_ms())
        for wait in ("10s", "1h", "12h"):
            broker.clock.advance(wait)
            assert overdue(broker) == timedelta(0)
            assert look(broker, f"{HELD_OR_WAITING} AND visible_at_ms <= {broker.clock.now_ms()}") == []
        assert states(broker) == Counter(READY=30)


@pytest.mark.user("U14")
def test_what_is_overdue_because_the_store_does_not_answer_is_seen_and_then_done(broker: EmbeddedBroker) -> None:
    send(broker, "1")
    with SimpleConsumer(broker.endpoint, GROUP, TOPIC) as consumer:
        consumer.receive(invisible_duration=10)
    with watched(broker.app.broker.engine.database, "SELECT due.group_id", refuse):
        broker.clock.advance("17s")
        assert overdue(broker) == timedelta(seconds=7)
    broker.clock.advance("1s")
    assert overdue(broker) == timedelta(0)
    assert states(broker) == Counter(READY=1)


@pytest.mark.user("U15")
def test_a_job_longer_than_its_hold_keeps_it(database_url: str) -> None:
    """Twice as long; and what waited in the client meanwhile is handed out with a fresh hold, or not at all."""
    with (
        popserver.embedded(database_url, min_invisible="100ms") as broker,
        SimpleConsumer(broker.endpoint, GROUP, TOPIC, invisible_duration=1.5) as consumer,
    ):
        send(broker, "1", "2")
        messages = iter(consumer)
        first = next(messages)
        ends = first.invisible_until
        with first.keep_alive():
            until(lambda: first.invisible_until > ends + timedelta(seconds=1.6))
            consumer.ack(first)
        second = next(messages)
        assert second.invisible_until - datetime.now(UTC) > timedelta(seconds=0.5)
        consumer.ack(second)
        assert (first.delivery_attempt, {first.text, second.text}) == (1, {"1", "2"})
        assert states(broker) == Counter(COMMIT=2)


@pytest.mark.user("U16")
def test_a_delay_longer_than_any_hold_delivers_once(broker: EmbeddedBroker) -> None:
    make_topic(broker, "DELAY")
    due = datetime.fromtimestamp(broker.clock.now_ms() / 1_000, UTC) + timedelta(days=2)
    send(broker, "later", delivery_timestamp=due)
    with SimpleConsumer(broker.endpoint, GROUP, TOPIC) as consumer, ThreadPoolExecutor() as pool:
        poll = pool.submit(consumer.receive, 32, 10, 60)
        for wait in ["1h"] * 47 + ["59m59s"]:
            broker.clock.advance(wait)
        assert look(broker, "SELECT COUNT(*) FROM message") == [(0,)]
        parked(broker)
        broker.clock.advance("1s")
        (message,) = poll.result(60)
        assert (message.text, message.delivery_attempt) == ("later", 1)
        consumer.ack(message)
        broker.clock.advance("12h")
    assert states(broker) == Counter(COMMIT=1)


@pytest.mark.user("U17")
def test_closing_and_restarting_burn_no_attempt(start: Start) -> None:
    """More closed consumers than there are attempts, and a restart: nothing has failed, nothing is a dead letter."""
    with start() as broker:
        with Admin(broker.endpoint) as admin:
            admin.create_group(GROUP, max_attempts=2, history="all")
        make_topic(broker, "NORMAL")
        ids = send(broker, *map(str, range(10)))
        for number in range(5):
            with SimpleConsumer(broker.endpoint, GROUP, TOPIC) as consumer:
                message = next(iter(consumer))
                assert (message.text, message.delivery_attempt) == (str(number), 1)
                consumer.ack(message)
            assert states(broker) == Counter(COMMIT=number + 1, READY=9 - number)
        with SimpleConsumer(broker.endpoint, GROUP, TOPIC) as consumer:
            held = consumer.receive(invisible_duration=3_600)
        with Admin(broker.endpoint) as admin:
            steps = admin.get_message(ids[9]).history
        assert [each.event for each in steps] == ["RECEIVE", "GIVE_BACK"] * 5 + ["RECEIVE"]
        assert {each.delivery_attempt for each in steps if each.event == "RECEIVE"} == {1}
    with start() as broker:
        assert states(broker) == Counter(COMMIT=5, INFLIGHT=5)
        assert {each.delivery_attempt for each in held} == {1}
        with SimpleConsumer(broker.endpoint, GROUP, TOPIC) as consumer:
            consumer.ack(held)
        assert states(broker) == Counter(COMMIT=10)


@pytest.mark.user("U18")
def test_what_is_sent_twice_or_delivered_twice_is_done_once(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """The producer names what it says; the consumer remembers, in its own database, what it has done."""
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    popsql.metadata.create_all(engine)
    with engine.begin() as conn:
        conn.execute(text("CREATE TABLE paid (number TEXT)"))
    calls: list[int] = []

    @popsql.idempotent(sessionmaker(engine), group=GROUP)
    def pay(message: MessageView, session: Session) -> None:
        session.execute(text("INSERT INTO paid VALUES (:number)"), {"number": message.text})

    def listener(message: MessageView) -> ConsumeResult:
        calls.append(message.delivery_attempt)
        done = pay(message)
        return FAILURE if message.delivery_attempt == 1 else done  # the answer to the first one gets lost

    with Producer(broker.endpoint) as producer:
        sent = [producer.send(Message(TOPIC, "42", idempotency_key="order-42-paid")) for _ in range(3)]
    assert len({each.message_id for each in sent}) == 1
    with PushConsumer(broker.endpoint, GROUP, TOPIC, listener):
        until(lambda: states(broker) == Counter(WAITING_RETRY=1))
        broker.clock.advance("10s")
        until(lambda: states(broker) == Counter(COMMIT=1))
    assert calls == [1, 2]
    with engine.connect() as conn:
        assert conn.execute(text("SELECT number FROM paid")).all() == [("42",)]
    engine.dispose()


@pytest.mark.user("U19")
def test_a_dead_letter_that_is_gone_stays_gone_after_a_restart(start: Start) -> None:
    with start() as broker:
        with Admin(broker.endpoint) as admin:
            for group in (GROUP, "shipping"):
                admin.create_group(group, max_attempts=1)
        send(broker, "1", "2")
        for group in (GROUP, "shipping"):
            with SimpleConsumer(broker.endpoint, group, TOPIC) as consumer:
                for message in [*consumer.receive(1), *consumer.receive(1)]:
                    consumer.forward_to_dead_letter_queue(message)
        with Admin(broker.endpoint) as admin, SimpleConsumer(broker.endpoint, "repair", f"%DLQ%{GROUP}") as repair:
            repair.ack([*repair.receive(1), *repair.receive(1)])
            admin.delete_group("shipping")
        assert dead(broker) == [(GROUP, 2)]
    with start() as broker:
        assert dead(broker) == [(GROUP, 2)], "seen by who repairs them, they stay to be looked at; the others are gone"
        with Admin(broker.endpoint) as admin:
            assert [(each.group, each.ready, each.inflight) for each in admin.get_group("repair").lag] == [
                ("repair", 0, 0)
            ]
            admin.delete_group(GROUP)
        assert dead(broker) == []
    with start() as broker:
        assert dead(broker) == []
        assert look(broker, "SELECT COUNT(*) FROM message WHERE copy_of IS NOT NULL") == [(0,)]


def dead(broker: EmbeddedBroker) -> list[tuple[str, int]]:
    rows = look(broker, "SELECT consumer_group, COUNT(*) FROM dead_letters GROUP BY consumer_group")
    return [(group, count) for group, count in rows]


def refuse() -> None:
    raise OperationalError("SELECT", {}, Exception("the store is away"))


HELD_OR_WAITING = "SELECT message_key FROM delivery WHERE state IN ('INFLIGHT', 'WAITING_RETRY')"
