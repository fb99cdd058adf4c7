"""The asyncio relay, on asyncio engines: what the synchronous one promises."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import sqlite3
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest
from sqlalchemy import insert, make_url, select, text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

import popclient
import popserver
from popclient import Message, Unauthorized, Unreachable, aio, sql
from popclient.admin import Admin
from popclient.sql import relay as relaying
from popclient.sql import tables
from popserver import EmbeddedBroker
from tests.support.scripted_server import until
from tests.support.waiting import eventually


@pytest.fixture(params=["sqlite_url", "empty_postgres_url"], ids=["sqlite", "postgres"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[AsyncEngine]:
    """A user's database with an outbox."""
    url = make_url(request.getfixturevalue(request.param))
    driver = "sqlite+aiosqlite" if url.get_backend_name() == "sqlite" else "postgresql+psycopg"
    engine = create_async_engine(url.set(drivername=driver))
    async with engine.begin() as conn:
        await conn.run_sync(sql.metadata.create_all)
    yield engine
    await engine.dispose()


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with popserver.embedded() as running:
        yield running


async def enqueue(engine: AsyncEngine, *messages: Message) -> None:
    async with AsyncSession(engine) as session, session.begin():
        for message in messages:
            await sql.enqueue(session, message)


async def refusals(engine: AsyncEngine) -> list[str | None]:
    """Of the rows that are left."""
    async with engine.connect() as conn:
        found = await conn.execute(select(tables.outbox.c.refusal).order_by(tables.outbox.c.outbox_id))
        return list(found.scalars())


async def has_rows(engine: AsyncEngine, count: int) -> bool:
    return len(await refusals(engine)) == count


def stored(broker: EmbeddedBroker) -> list[tuple[str | None, str]]:
    """Message group and body of every message the broker has, in the order of the queues."""
    query = text("SELECT message_group, body FROM message ORDER BY message_key")
    rows = broker.run(broker.app.broker.engine.reader.read(lambda conn: list(conn.execute(query))))
    return [(row.message_group, bytes(row.body).decode()) for row in rows]


def accept(broker: EmbeddedBroker, topic: str, kind: str) -> None:
    with Admin(broker.endpoint) as admin:
        admin.create_topic(topic, queue_count=2, accept_message_types=[kind])


async def test_it_runs_beside_the_program_and_keeps_the_order_of_each_group(
    engine: AsyncEngine, broker: EmbeddedBroker
) -> None:
    accept(broker, "steps", "FIFO")
    async with aio.Producer(broker.endpoint) as producer, aio.Relay(engine, producer, poll_interval=0.01):
        for number in range(50):
            await enqueue(engine, *(Message("steps", f"{number}", message_group=group) for group in "abc"))
        await eventually(partial(has_rows, engine, 0), "all are moved", within_s=60)
    found = stored(broker)
    for group in "abc":
        assert [int(body) for of, body in found if of == group] == list(range(50))


async def test_what_was_sent_and_not_removed_is_stored_once(
    engine: AsyncEngine, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay dies between the broker's answer and its own commit."""
    await enqueue(engine, *(Message("orders", f"{number}") for number in range(300)))
    async with aio.Producer(broker.endpoint) as producer:
        relay = aio.Relay(engine, producer)
        with monkeypatch.context() as broken:
            broken.setattr(aio.Relay, "_settle", _fail)
            with pytest.raises(OperationalError):
                await relay.move()
        assert (len(stored(broker)), await relay.waiting()) == (relaying.STEP_ROWS, 300)
        assert await relay.run_once() == 300
    assert sorted(int(body) for _, body in stored(broker)) == list(range(300))


async def _fail(*_: object) -> None:
    raise OperationalError("DELETE", {}, Exception("the disk is gone"))


async def test_cancelled_at_any_line_it_loses_nothing_doubles_nothing_and_keeps_the_order(
    engine: AsyncEngine, broker: EmbeddedBroker
) -> None:
    accept(broker, "steps", "FIFO")
    await enqueue(engine, *(Message("steps", f"{number}", message_group=f"{number % 3}") for number in range(600)))
    async with aio.Producer(broker.endpoint) as producer:
        relay = aio.Relay(engine, producer)
        for turns in itertools.count(step=3):
            running = asyncio.create_task(relay.run_once())
            for _ in range(turns):
                if running.done():
                    break
                await asyncio.wait([running], timeout=0.0005)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            if not running.cancelled():
                assert running.exception() is None
                break
        assert (turns > 0, await relay.waiting()) == (True, 0)
    found = stored(broker)
    for group in range(3):
        assert [int(body) for of, body in found if of == str(group)] == list(range(group, 600, 3))


async def test_cancelled_at_any_line_it_leaves_no_lock(sqlite_url: str, broker: EmbeddedBroker) -> None:
    """Python releases the lock of a cancelled SELECT when it collects the cursor, so it must collect nothing here."""
    path = str(make_url(sqlite_url).database)
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with engine.begin() as conn:
        await conn.run_sync(sql.metadata.create_all)
    await enqueue(engine, *(Message("orders", f"{number}") for number in range(600)))
    gc.disable()
    try:
        async with aio.Producer(broker.endpoint) as producer:
            relay = aio.Relay(engine, producer)
            for turns in itertools.count(1):
                running = asyncio.create_task(relay.run_once())
                await asyncio.wait([running], timeout=turns * 0.0002)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                with contextlib.closing(sqlite3.connect(path, timeout=0)) as other:
                    other.execute("BEGIN EXCLUSIVE")
                if not running.cancelled():
                    break
    finally:
        gc.enable()
        await engine.dispose()


async def test_what_the_broker_refuses_holds_up_nothing_else(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message stays with the reason; a topic is tried again."""
    monkeypatch.setattr(relaying, "TOPIC_PAUSE", 0.05)
    with popserver.embedded(auto_create=False) as broker:
        accept(broker, "here", "NORMAL")
        await enqueue(engine, *(Message("nowhere", f"{number}") for number in range(200)))
        async with engine.begin() as conn:
            row = {"topic": "here", "message_id": "by hand", "written_at_ms": 0, "body": b"x"}
            await conn.execute(insert(tables.outbox), row | {"tag": "a|b"})
            await conn.execute(insert(tables.outbox), row | {"keys": "nonsense"})
        await enqueue(engine, Message("here", "good"))
        async with aio.Producer(broker.endpoint) as producer, aio.Relay(engine, producer, poll_interval=0.01) as relay:
            await until(lambda: stored(broker))
            assert stored(broker) == [(None, "good")]
            accept(broker, "nowhere", "NORMAL")
            await until(lambda: len(stored(broker)) == 201)
            await eventually(partial(has_rows, engine, 2), "the others are moved", within_s=60)
            tag, keys = await refusals(engine)
            assert await relay.refused() == 2
            assert "ILLEGAL_MESSAGE_TAG (40004)" in str(tag)
            assert "cannot be read" in str(keys)
            async with engine.begin() as conn:
                await conn.execute(
                    update(tables.outbox).where(tables.outbox.c.tag == "a|b").values(tag=None, refusal=None)
                )
            await until(lambda: len(stored(broker)) == 202)


async def test_a_database_and_a_broker_that_are_gone_are_waited_for(
    engine: AsyncEngine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with popserver.embedded() as broker:
        port = int(broker.endpoint.rpartition(":")[2])
    await enqueue(engine, Message("orders", "1"))
    producer = aio.Producer(f"127.0.0.1:{port}")
    with pytest.raises(Unreachable):
        await aio.Relay(engine, producer).run_once()
    failures = iter([ConnectionRefusedError("no database"), OperationalError("SELECT", {}, Exception("gone"))])
    move = aio.Relay.move

    async def move_later(relay: aio.Relay) -> relaying.Step:
        for failure in failures:
            raise failure
        return await move(relay)

    monkeypatch.setattr(aio.Relay, "move", move_later)
    async with aio.Relay(engine, producer, poll_interval=0.01) as relay:
        await until(lambda: "no database" in caplog.text and "gone" in caplog.text)
        with popserver.embedded(port=port) as again:
            await until(lambda: stored(again) == [(None, "1")])
            await until(lambda: "does not wait any more" in caplog.text)
            assert (relay.healthy, await relay.waiting()) == (True, 0)
            await producer.close()


async def test_with_wrong_credentials_it_ends_and_says_so(
    engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    await enqueue(engine, Message("orders", "1"))
    with popserver.embedded(auth=True, admin_access_key="root", admin_secret="root-has-a-secret") as broker:
        config = aio.ClientConfig(broker.endpoint, access_key="root", access_secret="wrong")
        producer = aio.Producer(config)
        with pytest.raises(Unauthorized, match="the access key or the signature was refused"):
            await aio.Relay(engine, producer).run()
        async with aio.Relay(engine, producer) as relay:
            await until(lambda: not relay.healthy)
        assert await relay.waiting() == 1
        await producer.close()
    assert caplog.text.count("the relay ends, and the outbox waits: ") == 1


async def test_parts_of_the_other_kind_are_refused(engine: AsyncEngine) -> None:
    ours, theirs = aio.Producer("127.0.0.1:1"), popclient.Producer("127.0.0.1:1")
    refused: list[tuple[Any, Any, Any, str]] = [
        (aio.Relay, engine.sync_engine, ours, r"engine Engine.* is no asyncio engine; popclient\.aio\.Relay takes one"),
        (aio.Relay, engine, theirs, r"producer .* is no asyncio producer; popclient\.aio\.Relay takes one"),
        (sql.Relay, engine, theirs, r"engine .* is an asyncio engine; popclient\.aio\.Relay takes it"),
        (sql.Relay, engine.sync_engine, ours, r"producer .* is an asyncio producer; popclient\.aio\.Relay takes it"),
    ]
    for relay, given, producer, refusal in refused:
        with pytest.raises(TypeError, match=refusal):
            relay(given, producer)
