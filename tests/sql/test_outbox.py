"""The outbox: written with the user's transaction, emptied by a relay, once each, in order."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, insert, make_url, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

import popserver
from popclient import Message, PopError, Producer, Unreachable, sql
from popclient.sql import Relay, rules, tables
from popclient.sql import relay as relaying
from popserver import EmbeddedBroker
from popserver.model import message as server_rules
from popserver.model import names
from tests.sql.refused import NOT_TYPED, OF_EVERY_BROKER
from tests.support.scripted_server import until_in_thread


@pytest.fixture(params=["sqlite_url", "empty_postgres_url"], ids=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """A user's database, with an outbox and a table of his own."""
    url = make_url(request.getfixturevalue(request.param))
    engine = create_engine(url if url.get_backend_name() == "sqlite" else url.set(drivername="postgresql+psycopg"))
    sql.metadata.create_all(engine)
    with engine.begin() as conn:
        conn.execute(text("CREATE TABLE orders (number INTEGER)"))
    yield engine
    engine.dispose()


@pytest.fixture
def lite_engine(sqlite_url: str) -> Iterator[Engine]:
    engine = create_engine(sqlite_url)
    sql.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with popserver.embedded() as running:
        yield running


def rows(engine: Engine) -> list[Any]:
    with engine.connect() as conn:
        return list(conn.execute(select(tables.outbox).order_by(tables.outbox.c.outbox_id)))


def stored(broker: EmbeddedBroker, what: str = "body") -> list[Any]:
    """Of every message the broker has, in order."""
    query = f"SELECT {what} FROM message ORDER BY message_key"
    return [tuple(row) if len(row) > 1 else row[0] for row in broker.run(_rows(broker, query))]


async def _rows(broker: EmbeddedBroker, query: str) -> list[Any]:
    return await broker.app.broker.engine.reader.read(lambda conn: list(conn.execute(text(query))))


@pytest.mark.user("U30")
def test_a_message_travels_with_everything_it_has(engine: Engine, broker: EmbeddedBroker) -> None:
    with Session(engine) as session, session.begin():
        message_id = sql.enqueue(
            session,
            Message(
                "orders",
                "päper",
                tag="UA",
                keys=["a", "b"],
                properties={"origin": "JFK"},
                trace_context="00-1-2-01",
                idempotency_key="order-1",
            ),
        )
    with Producer(broker.endpoint) as producer:
        assert Relay(engine, producer).run_once() == 1
    assert rows(engine) == []
    found = stored(broker, "hex(message_id), body, tag, keys, properties, trace_context")
    properties = {"origin": "JFK", "popmq.idempotency-key": "order-1"}
    (row,) = found
    assert row[:4] == (message_id, "päper".encode(), "UA", '["a", "b"]')
    assert (json.loads(row[4]), row[5]) == (properties, "00-1-2-01")


def test_it_comes_and_goes_with_the_users_transaction(engine: Engine) -> None:
    with Session(engine) as session:
        session.execute(text("INSERT INTO orders VALUES (1)"))
        sql.enqueue(session, "orders", b"1")
        session.rollback()
    assert rows(engine) == []
    with Session(engine) as session:
        session.execute(text("INSERT INTO orders VALUES (2)"))
        sql.enqueue(session, "orders", b"2", keys="k")
        session.commit()
    assert [row.body for row in rows(engine)] == [b"2"]


def test_a_connection_will_do(engine: Engine) -> None:
    with engine.begin() as conn:
        sql.enqueue(conn, "orders", b"1", delivery_timestamp=datetime(2030, 1, 1, tzinfo=UTC))
    (row,) = rows(engine)
    assert row.deliver_at_ms == 1_893_456_000_000
    assert (row.keys, row.properties, row.message_group, row.refusal) == (None, None, None, None)


async def test_asynchronous_sessions(empty_postgres_url: str) -> None:
    engine = create_async_engine(make_url(empty_postgres_url).set(drivername="postgresql+psycopg"))
    async with engine.begin() as conn:
        await conn.run_sync(sql.metadata.create_all)
    async with AsyncSession(engine) as session, session.begin():
        message_id = await sql.enqueue(session, "orders", b"1")
    async with engine.connect() as conn:
        assert list((await conn.execute(select(tables.outbox.c.message_id))).scalars()) == [message_id]
    await engine.dispose()


def test_a_database_with_neither_is_refused(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'plain.db'}")
    with Session(engine) as session:
        with pytest.raises(sql.UnsupportedByStore, match=r"has no table popmq_outbox; make it with: .*create_all"):
            sql.enqueue(session, "orders", b"1")
        sql.metadata.create_all(session.connection())
        sql.enqueue(session, "orders", b"1")
    engine.dispose()


def test_the_sqlite_file_of_a_broker_is_refused(tmp_path: Path) -> None:
    with popserver.embedded(tmp_path / "broker.db"):
        engine = create_engine(f"sqlite:///{tmp_path / 'broker.db'}")
        with Session(engine) as session, pytest.raises(sql.UnsupportedByStore, match="which alone writes there"):
            sql.enqueue(session, "orders", b"1")
        engine.dispose()


def test_a_program_reads_the_file_of_its_embedded_broker(tmp_path: Path) -> None:
    """Two libraries of SQLite in one process lose messages, and end it by SIGBUS."""
    command = [sys.executable, "-m", "tests.sql.read_beside", str(tmp_path / "broker.db")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


def test_what_enqueue_does_not_take(lite_engine: Engine) -> None:
    with Session(lite_engine) as session:
        with pytest.raises(ValueError, match="namespace 'eu' cannot be kept in an outbox"):
            sql.enqueue(session, "orders", b"1", namespace="eu")
        with pytest.raises(TypeError, match="a Message alone"):
            sql.enqueue(session, Message("orders", b"1"), b"2")  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="exclude each other"):
            sql.enqueue(session, "orders", b"1", message_group="g", priority=1)
        with pytest.raises(ValueError, match="lite_topic 'a' cannot be kept in an outbox or a transaction"):
            sql.enqueue(session, Message("orders", b"1", lite_topic="a"))


def test_what_every_broker_refuses_does_not_enter_the_outbox(lite_engine: Engine, broker: EmbeddedBroker) -> None:
    with Producer(broker.endpoint) as producer:
        for bad in (*OF_EVERY_BROKER, {"topic": "%DLQ%g"}):
            message = Message(**{"topic": "orders", "body": b"x", **bad})
            with pytest.raises(PopError) as by_wire:
                producer.send(message)
            with pytest.raises(PopError) as by_sql, lite_engine.begin() as conn:
                sql.enqueue(conn, message)
            refused = type(by_sql.value), by_sql.value.name, by_sql.value.code
            assert refused == (type(by_wire.value), by_wire.value.name, by_wire.value.code), bad.keys()
    assert rows(lite_engine) == []


@pytest.mark.parametrize("bad", NOT_TYPED, ids=str)
def test_what_is_of_a_wrong_type_does_not_enter_the_outbox(engine: Engine, bad: dict[str, Any]) -> None:
    message = Message(**{"topic": "orders", "body": b"x", **bad})
    with pytest.raises(TypeError, match=r" is (5|\{\}|None); it must be "), engine.begin() as conn:
        sql.enqueue(conn, message)
    assert rows(engine) == []


def test_the_limits_are_those_of_the_server(lite_engine: Engine, broker: EmbeddedBroker) -> None:
    assert rules.RESERVED_PROPERTIES == server_rules.RESERVED_PROPERTIES
    assert rules.SYSTEM_TOPICS == names._SYSTEM_TOPICS
    longest = Message(
        "x" * 127,
        b"x" * server_rules.BODY_BYTES_MAX,
        keys=["k"] * 1_024,
        properties={f"p{number}": "" for number in range(127)},
        message_group="g" * server_rules.MESSAGE_GROUP_BYTES_MAX,
        trace_context="x" * 1_024,
        message_id="x" * server_rules.MESSAGE_ID_LENGTH_MAX,
        idempotency_key="x" * server_rules.KEY_BYTES_MAX,
    )
    with lite_engine.begin() as conn:
        sql.enqueue(conn, longest)
    with Producer(broker.endpoint) as producer:
        assert Relay(lite_engine, producer).run_once() == 1


def test_what_has_no_transaction_is_refused(lite_engine: Engine) -> None:
    for given in (lite_engine, sessionmaker(lite_engine), Session, create_async_engine("sqlite+aiosqlite://"), None):
        with pytest.raises(TypeError, match=r"the session is of type \w+, which has no transaction; give a Session or"):
            sql.enqueue(given, "orders", b"1")  # type: ignore[call-overload]
    for wrong in (("sqlite://", Producer("127.0.0.1:1")), (lite_engine, "127.0.0.1:1")):
        with pytest.raises(TypeError, match="is of type str; a Relay takes an engine and a producer"):
            Relay(*wrong)


def test_what_was_sent_and_not_removed_is_stored_once(
    lite_engine: Engine, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay dies between the broker's answer and its own commit."""
    with lite_engine.begin() as conn:
        for number in range(300):
            sql.enqueue(conn, "orders", str(number))
    with Producer(broker.endpoint, ["orders"]) as producer:
        relay = Relay(lite_engine, producer)
        with monkeypatch.context() as broken:
            broken.setattr(Relay, "_settle", _fail)
            with pytest.raises(OperationalError):
                relay.move()
        assert len(stored(broker)) == relaying.STEP_ROWS
        assert len(rows(lite_engine)) == 300
        assert relay.run_once() == 300
    assert sorted(map(int, stored(broker))) == list(range(300))


def _fail(*_: object) -> None:
    raise OperationalError("DELETE", {}, Exception("the disk is gone"))


def test_a_message_group_keeps_its_order(engine: Engine, broker: EmbeddedBroker) -> None:
    with Producer(broker.endpoint) as producer:
        _accept(broker, "steps", "FIFO")
        with Relay(engine, producer, poll_interval=0.01) as relay:
            for number in range(100):
                with Session(engine) as session, session.begin():
                    for group in ("a", "b", "c"):
                        sql.enqueue(session, "steps", f"{number}", message_group=group)
            until_in_thread(lambda: relay.waiting() == 0)
    found = stored(broker, "message_group, body")
    for group in ("a", "b", "c"):
        assert [int(body) for of, body in found if of == group] == list(range(100))


def _accept(broker: EmbeddedBroker, topic: str, *kinds: str) -> None:
    from popclient.admin import Admin

    with Admin(broker.endpoint) as admin:
        admin.create_topic(topic, queue_count=2, accept_message_types=kinds)


def test_a_single_message_broker_gets_one_of_each_group_at_a_time(lite_engine: Engine) -> None:
    with lite_engine.begin() as conn:
        for group in ("a", "a", None, "b", "a", None):
            sql.enqueue(conn, "steps", "x", message_group=group)
    waves = relaying.waves(rows(lite_engine), in_runs=False)
    assert [[row.message_group for row in wave] for wave in waves] == [["a", None, "b", None], ["a"], ["a"]]
    assert relaying.waves([], in_runs=True) == []


def test_a_message_the_broker_refuses_stays_with_the_reason(lite_engine: Engine, broker: EmbeddedBroker) -> None:
    with lite_engine.begin() as conn:
        sql.enqueue(conn, "orders", "1")
        conn.execute(insert(tables.outbox), _row(body=b"2", tag="a|b"))
        conn.execute(insert(tables.outbox), _row(properties='{"a": 1}'))
        conn.execute(insert(tables.outbox), _row(keys="nonsense"))
        conn.execute(insert(tables.outbox), _row(priority=40_000))
        sql.enqueue(conn, "orders", "3")
    with Producer(broker.endpoint, ["orders"]) as producer:
        relay = Relay(lite_engine, producer)
        assert relay.run_once() == 2
        assert (relay.waiting(), relay.refused()) == (0, 4)
        refusals = [row.refusal for row in rows(lite_engine)]
        assert "ILLEGAL_MESSAGE_TAG (40004)" in refusals[0]
        assert "no JSON object of texts" in refusals[1]
        assert "cannot be read" in refusals[2]
        assert "priority 40000 is not within 0 and 32767" in refusals[3]
        with lite_engine.begin() as conn:
            conn.execute(text("UPDATE popmq_outbox SET tag = NULL, refusal = NULL WHERE tag IS NOT NULL"))
        assert relay.run_once() == 1
    assert sorted(stored(broker)) == [b"1", b"2", b"3"]


def test_an_application_starts_and_ends_without_its_broker(lite_engine: Engine, tmp_path: Path) -> None:
    """The relay opens its producer, with its first message."""
    with popserver.embedded(tmp_path / "broker.db") as broker:
        port = int(broker.endpoint.rpartition(":")[2])
    with lite_engine.begin() as conn:
        sql.enqueue(conn, "orders", "1")
    with closing(Producer(f"127.0.0.1:{port}")) as producer, Relay(lite_engine, producer):
        pass
    assert len(rows(lite_engine)) == 1
    with (
        closing(Producer(f"127.0.0.1:{port}")) as producer,
        Relay(lite_engine, producer, poll_interval=0.01) as relay,
        popserver.embedded(tmp_path / "broker.db", port=port) as again,
    ):
        until_in_thread(lambda: relay.waiting() == 0)
        assert stored(again) == [b"1"]


def _row(**more: Any) -> dict[str, Any]:
    return {"topic": "orders", "message_id": "by hand", "written_at_ms": 0, "body": b"x", **more}


def test_a_topic_that_is_missing_holds_up_no_other(lite_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaying, "TOPIC_PAUSE", 0.05)
    with popserver.embedded(auto_create=False) as broker, Producer(broker.endpoint) as producer:
        _accept(broker, "here", "NORMAL")
        with lite_engine.begin() as conn:
            for number in range(200):
                sql.enqueue(conn, "nowhere", str(number))
            sql.enqueue(conn, "here", "first")
        relay = Relay(lite_engine, producer, poll_interval=0.01)
        until_in_thread(lambda: relay.run_once() == 1)
        assert stored(broker) == [b"first"]
        _accept(broker, "nowhere", "NORMAL")
        until_in_thread(lambda: not relay.run_once() and not relay.waiting())
        assert len(stored(broker)) == 201


def test_a_broker_that_is_gone_is_waited_for(lite_engine: Engine, tmp_path: Path) -> None:
    with popserver.embedded(tmp_path / "broker.db") as broker:
        port = int(broker.endpoint.rpartition(":")[2])
    with lite_engine.begin() as conn:
        sql.enqueue(conn, "orders", "1")
    producer = Producer(f"127.0.0.1:{port}")
    relay = Relay(lite_engine, producer, poll_interval=0.01)
    with pytest.raises(Unreachable):
        relay.run_once()
    stop = threading.Event()
    thread = threading.Thread(target=relay.run, args=(stop,))
    thread.start()
    with popserver.embedded(tmp_path / "broker.db", port=port) as again:
        until_in_thread(lambda: relay.waiting() == 0)
        assert stored(again) == [b"1"]
        stop.set()
        thread.join()
        producer.close()
