"""Sending inside the user's transaction, in the broker's own Postgres."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from popclient import Message, MessageView, PopError, Producer, SimpleConsumer, sql
from popclient.admin import Admin
from popclient.sql.connection import refusals
from popserver import EmbeddedBroker
from tests.sql.refused import NOT_TYPED, OF_EVERY_BROKER, OF_THE_FUNCTION
from tests.support.scripted_server import until_in_thread

KINDS = ["NORMAL", "FIFO", "DELAY", "PRIORITY"]


@pytest.fixture
def broker(broker: EmbeddedBroker) -> EmbeddedBroker:
    """With the topics `orders`, of four queues, and `plain`."""
    with Admin(broker.endpoint) as admin:
        admin.create_topic("orders", queue_count=4, accept_message_types=KINDS)
        admin.create_topic("plain", accept_message_types=["NORMAL"])
    return broker


@pytest.fixture
def consumer(broker: EmbeddedBroker) -> Iterator[SimpleConsumer]:
    with SimpleConsumer(broker.endpoint, "g", "orders") as consumer:
        yield consumer


def take(consumer: SimpleConsumer, count: int) -> list[MessageView]:
    """The next so many messages, acked."""
    found: list[MessageView] = []
    while len(found) < count and (more := consumer.receive(32, 30, 5)):
        consumer.ack(more)
        found += more
    assert len(found) == count
    return found


def number_of(user: Engine, table: str) -> int:
    with user.connect() as conn:
        found: int = conn.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
    return found


@pytest.mark.user("U30")
def test_a_message_arrives_right_after_the_commit(user: Engine, consumer: SimpleConsumer) -> None:
    sent = Message(
        "orders", "päper", tag="UA", keys=["a b", "ü"], properties={"origin": "JFK", "q": '"\\'}, trace_context="00-1"
    )
    with Session(user) as session:
        session.execute(text("INSERT INTO orders VALUES (1)"))
        message_id = sql.enqueue(session, sent)
        assert consumer.receive(1, 30, 0.1) == []
        session.commit()
    (message,) = take(consumer, 1)
    assert (message.message_id, message.text, message.tag) == (message_id, "päper", "UA")
    assert (message.keys, message.properties) == (("a b", "ü"), {"origin": "JFK", "q": '"\\'})
    assert (message.trace_context, message.message_type, message.delivery_timestamp) == ("00-1", "NORMAL", None)
    assert not message.corrupted
    for at in (message.born_timestamp, message.store_timestamp):
        assert at is not None
        assert abs(at - datetime.now(UTC)) < timedelta(minutes=1)
    assert number_of(user, "pending") == 0


def test_a_rollback_sends_nothing(user: Engine, broker: EmbeddedBroker) -> None:
    with Session(user) as session:
        sql.enqueue(session, "orders", b"1")
        session.rollback()
    with Session(user) as session, pytest.raises(ZeroDivisionError), session.begin():
        sql.enqueue(session, "orders", b"2")
        _ = 1 // 0
    assert (number_of(user, "pending"), number_of(user, "message")) == (0, 0)


def test_any_kind_of_session(user: Engine, consumer: SimpleConsumer) -> None:
    with user.begin() as conn:
        sql.enqueue(conn, "orders", "connection")
    sessions = scoped_session(sessionmaker(user))
    sql.enqueue(sessions, "orders", "scoped")
    sessions.commit()
    sessions.remove()
    assert {message.text for message in take(consumer, 2)} == {"connection", "scoped"}


async def test_asynchronous_sessions(broker: EmbeddedBroker, user: Engine, postgres_url: str) -> None:
    engine = create_async_engine(make_url(postgres_url).set(drivername="postgresql+psycopg"))
    async with AsyncSession(engine) as session, session.begin():
        await sql.enqueue(session, "orders", "1")
    async with engine.begin() as conn:
        await sql.enqueue(conn, Message("orders", "2"))
    await engine.dispose()
    until_in_thread(lambda: number_of(user, "message") == 2)


def test_a_delayed_one_comes_when_it_is_due(user: Engine, consumer: SimpleConsumer) -> None:
    due = datetime.now(UTC) + timedelta(seconds=1)
    with user.begin() as conn:
        sql.enqueue(conn, "orders", "later", delivery_timestamp=due)
        sql.enqueue(conn, "orders", "at once", delivery_timestamp=due - timedelta(days=1))
        sql.enqueue(conn, "orders", "first", priority=7)
        sql.enqueue(conn, "orders", "soon", delay=0.1)
    early = take(consumer, 3)
    assert {message.text for message in early} == {"at once", "first", "soon"}
    assert {message.priority for message in early} == {None, 7}
    (late,) = take(consumer, 1)
    lateness = datetime.now(UTC) - due
    assert (late.text, late.message_type) == ("later", "DELAY")
    assert late.delivery_timestamp is not None
    assert abs(late.delivery_timestamp - due) < timedelta(milliseconds=1)
    assert timedelta(0) <= lateness < timedelta(seconds=1)


def test_message_groups_keep_their_order(user: Engine, consumer: SimpleConsumer) -> None:
    """Within a transaction the order of the calls, between transactions that of the commits; in parallel by group."""

    def send(group: str) -> None:
        for number in range(0, 60, 3):
            with user.begin() as conn:
                for each in range(number, number + 3):
                    sql.enqueue(conn, "orders", f"{each}", message_group=group)

    threads = [threading.Thread(target=send, args=(group,)) for group in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    bodies: dict[str | None, list[int]] = defaultdict(list)
    for message in take(consumer, 180):
        bodies[message.message_group].append(int(message.text))
    for thread in threads:
        thread.join()
    assert dict(bodies) == {group: list(range(60)) for group in ("a", "b", "c")}


def test_a_repeated_id_is_one_message(broker: EmbeddedBroker, user: Engine, consumer: SimpleConsumer) -> None:
    sent = Message("orders", "x", message_id="order-1")
    for _ in range(2):
        with user.begin() as conn:
            assert [sql.enqueue(conn, sent) for _ in range(2)] == ["order-1", "order-1"]
    take(consumer, 1)
    with Producer(broker.endpoint) as producer:
        assert producer.send(sent).message_id == "order-1"
        producer.send(Message("orders", "y", message_id="order-2"))
    with user.begin() as conn:
        sql.enqueue(conn, sent)
        sql.enqueue(conn, Message("orders", "y", message_id="order-2"))
    take(consumer, 1)
    assert (number_of(user, "pending"), number_of(user, "message")) == (0, 2)


def test_sent_meanwhile_it_is_one_message_too(broker: EmbeddedBroker, user: Engine, consumer: SimpleConsumer) -> None:
    """The same message in an open transaction and over the wire: nobody waits, one is stored."""
    normal = Message("orders", "x", message_id="order-1")
    delayed = Message("orders", "x", message_id="order-2", delivery_timestamp=datetime.now(UTC) + timedelta(seconds=1))
    with Producer(broker.endpoint, "orders") as producer, user.begin() as conn:
        sql.enqueue(conn, normal)
        sql.enqueue(conn, delayed)
        began = datetime.now(UTC)
        producer.send(normal)
        producer.send(delayed)
        assert datetime.now(UTC) - began < timedelta(seconds=2)
    take(consumer, 2)
    until_in_thread(lambda: number_of(user, "pending") == 0)
    assert number_of(user, "message") == 2


@pytest.mark.parametrize("first", ["wire", "sql"])
def test_idempotency_keys(broker: EmbeddedBroker, user: Engine, consumer: SimpleConsumer, first: str) -> None:
    message = Message("orders", "x", idempotency_key="order-42")

    def by_wire() -> str:
        with Producer(broker.endpoint) as producer:
            return producer.send(message).message_id

    def by_sql() -> str:
        with user.begin() as conn:
            return sql.enqueue(conn, message)

    one = by_wire() if first == "wire" else by_sql()
    until_in_thread(lambda: number_of(user, "message") == 1)
    assert [by_sql(), by_wire(), by_sql()] == [one] * 3
    take(consumer, 1)
    assert (number_of(user, "pending"), number_of(user, "message")) == (0, 1)


def test_a_key_that_two_transactions_bring_at_once(user: Engine, consumer: SimpleConsumer) -> None:
    """Neither sees the other's, and neither waits: the second does not enter."""
    message = Message("orders", "x", idempotency_key="order-42")
    with user.begin() as one, user.begin() as other:
        sql.enqueue(one, message)
        sql.enqueue(other, message)
        sql.enqueue(other, message)
    take(consumer, 1)
    until_in_thread(lambda: number_of(user, "pending") == 0)
    assert number_of(user, "message") == 1


OF_THIS_BROKER: list[dict[str, Any]] = [
    {"topic": "nowhere"},
    {"topic": "plain", "message_group": "g"},
    {"topic": "plain", "priority": 1},
    {"topic": "plain", "delivery_timestamp": datetime.now(UTC) + timedelta(days=1)},
]


@pytest.mark.parametrize("by_the_function", [False, True])
def test_what_the_broker_refuses_is_refused_at_once_with_its_code(
    broker: EmbeddedBroker, user: Engine, monkeypatch: pytest.MonkeyPatch, by_the_function: bool
) -> None:
    if by_the_function:
        monkeypatch.setattr("popclient.sql.in_transaction.require_acceptable", Message.require_sendable)
    with Producer(_strict(broker)) as producer:
        for bad in (*OF_THIS_BROKER, *(OF_THE_FUNCTION if by_the_function else OF_EVERY_BROKER)):
            message = Message(**{"topic": "orders", "body": b"x", **bad})
            with pytest.raises(PopError) as by_sql, user.begin() as conn:
                sql.enqueue(conn, message)
            with pytest.raises(PopError) as by_wire:
                producer.send(message)
            refused = type(by_sql.value), by_sql.value.name
            assert refused == (type(by_wire.value), by_wire.value.name), bad.keys()
    assert (number_of(user, "pending"), number_of(user, "message")) == (0, 0)


@pytest.mark.parametrize("bad", NOT_TYPED, ids=str)
def test_what_is_of_a_wrong_type_is_refused_as_by_a_producer(
    broker: EmbeddedBroker, user: Engine, bad: dict[str, Any]
) -> None:
    message = Message(**{"topic": "orders", "body": b"x", **bad})
    with Producer(broker.endpoint) as producer, pytest.raises(TypeError) as by_wire:
        producer.send(message)
    with pytest.raises(TypeError) as by_sql, user.begin() as conn:
        sql.enqueue(conn, message)
    assert str(by_sql.value) == str(by_wire.value)


def _strict(broker: EmbeddedBroker) -> str:
    broker.app.broker.catalog._auto_create = False
    return broker.endpoint


def test_what_the_server_fills_is_not_sent_to(broker: EmbeddedBroker, user: Engine) -> None:
    with Admin(broker.endpoint) as admin:
        admin.create_group("g")
    for topic in ("%DLQ%g", "%RETRY%g"):
        with (
            pytest.raises(PopError, match=r"ILLEGAL_TOPIC \(40002\): only the server sends to"),
            user.begin() as conn,
        ):
            sql.enqueue(conn, topic, b"1")


def test_plain_sql_will_do(user: Engine, consumer: SimpleConsumer) -> None:
    """From any language: an id is drawn, and grows with time."""
    with user.begin() as conn:
        ids = [conn.execute(text("SELECT popmq_enqueue('orders', 'x', priority => 1)")).scalar_one() for _ in range(3)]
    assert {message.message_id for message in take(consumer, 3)} == set(ids)
    assert all(len(each) == 34 and each.startswith("01") for each in ids)


def test_properties_are_texts(broker: EmbeddedBroker, user: Engine) -> None:
    call = text("SELECT popmq_enqueue('orders', 'x', properties => CAST(:properties AS jsonb))")
    for properties in ("[]", "1", '"x"', '{"a": 1}', '{"a": null}', '{"a": {"b": "c"}}'):
        with pytest.raises(PopError, match=r"ILLEGAL_MESSAGE_PROPERTY_KEY \(40007\)"), refusals(), user.begin() as conn:
            conn.execute(call, {"properties": properties})


def test_strangers_may_not_call(broker: EmbeddedBroker, user: Engine) -> None:
    from sqlalchemy.exc import ProgrammingError

    role = f"stranger_{abs(hash(broker.endpoint))}"
    with user.connect() as conn:
        conn.execute(text(f"CREATE ROLE {role}"))
        conn.execute(text(f"SET LOCAL ROLE {role}"))
        with pytest.raises(ProgrammingError, match="permission denied for function popmq_enqueue"):
            sql.enqueue(conn, "orders", b"1")
        conn.rollback()
        conn.execute(text(f"CREATE ROLE {role}"))
        conn.execute(text(f"GRANT EXECUTE ON FUNCTION popmq_enqueue TO {role}"))
        conn.execute(text(f"SET LOCAL ROLE {role}"))
        sql.enqueue(conn, "orders", b"1")
        conn.rollback()
