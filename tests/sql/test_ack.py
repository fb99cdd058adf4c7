"""An ack inside the user's transaction: with his writes or not at all, and only while the hold is his."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from popclient import InvalidReceiptHandle, Message, MessageView, Producer, SimpleConsumer, sql
from popclient.admin import Admin
from popserver import EmbeddedBroker
from tests.support.scripted_server import until_in_thread


def received(
    broker: EmbeddedBroker, *bodies: str, invisible: float = 30, groups: Sequence[str | None] = ()
) -> list[MessageView]:
    """These messages, sent and held by group g."""
    with Admin(broker.endpoint) as admin:
        admin.create_topic("steps", queue_count=1, accept_message_types=["NORMAL", "FIFO"])
    named = groups or [None] * len(bodies)
    with Producer(broker.endpoint) as producer:
        producer.send_many(
            Message("steps", body, message_group=group) for body, group in zip(bodies, named, strict=True)
        ).raise_for_failures()
    return again(broker, len(bodies), invisible)


def again(broker: EmbeddedBroker, count: int, invisible: float = 30) -> list[MessageView]:
    with SimpleConsumer(broker.endpoint, "g", "steps") as consumer:
        found: list[MessageView] = []
        while len(found) < count and (more := consumer.receive(32, invisible, 5)):
            found += more
    assert len(found) == count
    return found


def states(user: Engine) -> list[str]:
    """Of every message in group g, in order."""
    with user.connect() as conn:
        return list(conn.execute(text("SELECT state FROM message_state ORDER BY message_key")).scalars())


def orders(user: Engine) -> list[int]:
    with user.connect() as conn:
        return list(conn.execute(text("SELECT number FROM orders ORDER BY number")).scalars())


def work(session: Any, number: int) -> None:
    session.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})


@pytest.mark.user("U30")
def test_work_and_ack_are_committed_together(broker: EmbeddedBroker, user: Engine) -> None:
    (message,) = received(broker, "1")
    with Session(user) as session, session.begin():
        work(session, 1)
        sql.ack(session, message)
    assert (orders(user), states(user)) == ([1], ["COMMIT"])


def test_work_and_ack_are_rolled_back_together(broker: EmbeddedBroker, user: Engine) -> None:
    (message,) = received(broker, "1")
    with Session(user) as session:
        work(session, 1)
        sql.ack(session, message)
        session.rollback()
    assert (orders(user), states(user)) == ([], ["INFLIGHT"])
    with Session(user) as session, session.begin():
        sql.ack(session, [message])
    assert states(user) == ["COMMIT"]


def test_a_hold_that_is_lost_rolls_the_work_back(broker: EmbeddedBroker, user: Engine) -> None:
    (message,) = received(broker, "1", invisible=0.1)
    (newer,) = again(broker, 1)
    assert newer.delivery_attempt == 2
    with pytest.raises(sql.HoldLost, match=r"INVALID_RECEIPT_HANDLE \(40013\): the receipt handle is no longer valid"):
        _handle(user, message, 1)
    assert (orders(user), states(user)) == ([], ["INFLIGHT"])
    _handle(user, newer, 2)
    assert (orders(user), states(user)) == ([2], ["COMMIT"])


def _handle(user: Engine, message: MessageView, number: int) -> None:
    with Session(user) as session, session.begin():
        work(session, number)
        sql.ack(session, message)


def test_what_is_done_is_not_done_again(broker: EmbeddedBroker, user: Engine) -> None:
    """A commit whose answer was lost, tried again: an ack over the wire would be fine, this one must not be."""
    (message,) = received(broker, "1")
    _handle(user, message, 1)
    with pytest.raises(sql.HoldLost):
        _handle(user, message, 1)
    assert orders(user) == [1]


def test_what_is_no_message_is_refused(user: Engine) -> None:
    for given in ("handle", None, ["handle"]):
        with user.begin() as conn, pytest.raises(TypeError, match=r"takes received messages, not ('handle'|None); "):
            sql.ack(conn, given)  # type: ignore[arg-type]


def test_a_handle_that_is_none(broker: EmbeddedBroker, user: Engine) -> None:
    (message,) = received(broker, "1")
    for handle in ("", "x", "A" * 39 + "=", message.receipt_handle[:-1], message.receipt_handle + "A", "é" * 40):
        with pytest.raises(InvalidReceiptHandle, match="is malformed"):
            _ack_by_handle(user, handle)
    with pytest.raises(InvalidReceiptHandle, match="no longer valid"):
        _ack_by_handle(user, "AQ" + "/" * 37 + "=")
    assert states(user) == ["INFLIGHT"]


def _ack_by_handle(user: Engine, handle: str) -> None:
    from popclient.sql.connection import refusals

    with user.begin() as conn, refusals():
        conn.execute(text("SELECT popmq_ack(:handle)"), {"handle": handle})


def test_several_at_once(broker: EmbeddedBroker, user: Engine) -> None:
    messages = received(broker, *map(str, range(40)))
    with user.begin() as conn:
        sql.ack(conn, messages)
    assert states(user) == ["COMMIT"] * 40


async def test_asynchronous_sessions(broker: EmbeddedBroker, user: Engine, postgres_url: str) -> None:
    import asyncio

    one, two = await asyncio.to_thread(received, broker, "1", "2")
    engine = create_async_engine(make_url(postgres_url).set(drivername="postgresql+psycopg"))
    async with AsyncSession(engine) as session, session.begin():
        await sql.ack(session, one)
    async with engine.begin() as conn:
        await sql.ack(conn, two)
    with pytest.raises(sql.HoldLost):
        async with engine.begin() as conn:
            await sql.ack(conn, two)
    await engine.dispose()
    assert states(user) == ["COMMIT", "COMMIT"]


def test_only_in_the_brokers_postgres(broker: EmbeddedBroker, tmp_path: Any) -> None:
    from sqlalchemy import create_engine

    (message,) = received(broker, "1")
    engine = create_engine(f"sqlite:///{tmp_path / 'own.db'}")
    with engine.connect() as conn, pytest.raises(sql.UnsupportedByStore, match=r"is not the Postgres database .*idemp"):
        sql.ack(conn, message)
    engine.dispose()


def test_a_group_that_keeps_all_its_history_keeps_this_too(broker: EmbeddedBroker, user: Engine) -> None:
    with Admin(broker.endpoint) as admin:
        admin.create_group("g", history="all")
    (message,) = received(broker, "1")
    _handle(user, message, 1)
    with user.connect() as conn:
        rows = conn.execute(text("SELECT event, from_state, to_state, attempt FROM history ORDER BY history_id")).all()
    assert [tuple(row) for row in rows] == [("RECEIVE", "READY", "INFLIGHT", 1), ("ACK", "INFLIGHT", "COMMIT", 1)]


def test_in_a_message_group(broker: EmbeddedBroker, user: Engine) -> None:
    """The ack frees the group: its next message comes."""
    first, second, other = received(broker, "1", "2", "3", groups=["a", "a", "b"])
    with pytest.raises(sql.OutOfOrder, match="before this one in message group 'a' is not acked"):
        _handle(user, second, 2)
    assert orders(user) == []
    _handle(user, first, 1)
    with pytest.raises(sql.HoldLost):
        _handle(user, first, 1)
    _handle(user, other, 3)
    _handle(user, second, 2)
    _tell(broker)
    until_in_thread(lambda: states(user) == ["COMMIT"] * 3)
    assert orders(user) == [1, 2, 3]
    with Producer(broker.endpoint) as producer:
        producer.send("steps", "4", message_group="a")
    assert [message.text for message in again(broker, 1)] == ["4"]


def test_a_whole_group_in_one_transaction(broker: EmbeddedBroker, user: Engine) -> None:
    messages = received(broker, *"12345", groups=["a"] * 5)
    with user.begin() as conn:
        sql.ack(conn, messages)
    _tell(broker)
    until_in_thread(lambda: states(user) == ["COMMIT"] * 5)


def _tell(broker: EmbeddedBroker) -> None:
    async def tell() -> None:
        broker.app.broker.maintenance._sleeper.expect(0)

    broker.run(tell())


def test_in_a_message_group_it_reads_no_other_deliveries(broker: EmbeddedBroker, user: Engine) -> None:
    """Those of the group's other messages come before, and the first one in its message group has no earlier one."""
    *_, last = received(broker, "1", "2", groups=["a", "b"])
    with user.connect() as conn:
        conn.execute(
            text(
                "INSERT INTO delivery SELECT d.* FROM (SELECT min(message_key) AS key FROM delivery) first,"
                " delivery e, generate_series(1, 5000) n, LATERAL (SELECT (jsonb_populate_record(e,"
                " jsonb_build_object('message_key', n - 10000, 'message_group', 'of ' || n))).*) d"
                " WHERE e.message_key = first.key"
            )
        )
        conn.execute(text("ANALYZE delivery"))
        ack = text("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT popmq_ack(CAST(:handle AS text))")
        blocks = []
        for _ in range(2):  # the first call plans its statements
            with conn.begin_nested() as savepoint:
                plan = conn.execute(ack, {"handle": last.receipt_handle}).scalar_one()[0]["Plan"]
                savepoint.rollback()
            blocks.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    assert blocks[-1] <= 60, "a few pages of each index"
