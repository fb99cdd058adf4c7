"""Work done once, though its message comes more than once: what was done stands in the user's own database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, make_url, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

import popserver
from popclient import ConsumeResult, Message, MessageView, Producer, PushConsumer, SimpleConsumer, aio, sql
from popclient.admin import Admin
from popclient.sql import tables
from tests.support.scripted_server import until_in_thread

SUCCESS, FAILURE = ConsumeResult.SUCCESS, ConsumeResult.FAILURE


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """A user's database, of his own."""
    url = make_url(database_url)
    engine = create_engine(url if url.get_backend_name() == "sqlite" else url.set(drivername="postgresql+psycopg"))
    sql.metadata.create_all(engine)
    with engine.begin() as conn:
        conn.execute(text("CREATE TABLE orders (body TEXT)"))
    yield engine
    engine.dispose()


@pytest.fixture
def sessions(engine: Engine) -> sessionmaker[Session]:
    return sessionmaker(engine)


def views(*bodies: str, topic: str = "orders") -> list[MessageView]:
    with popserver.embedded() as broker, Producer(broker.endpoint) as producer:
        for body in bodies:
            producer.send(topic, body)
        with SimpleConsumer(broker.endpoint, "g", topic) as consumer:
            found: list[MessageView] = []
            while len(found) < len(bodies):
                found += consumer.receive()
    return sorted(found, key=lambda message: message.text)


def orders(engine: Engine) -> list[str]:
    with engine.connect() as conn:
        return list(conn.execute(text("SELECT body FROM orders ORDER BY body")).scalars())


def work(message: MessageView, session: Session) -> None:
    session.execute(text("INSERT INTO orders VALUES (:body)"), {"body": message.text})


@pytest.mark.user("U18")
def test_a_repetition_is_done_and_not_handed_on(engine: Engine, sessions: sessionmaker[Session]) -> None:
    one, two = views("1", "2")
    listener = sql.idempotent(sessions, group="billing")(work)
    assert [listener(one), listener(one), listener(two)] == [SUCCESS] * 3
    assert orders(engine) == ["1", "2"]
    other_group = sql.idempotent(sessions, group="shipping")(work)
    assert other_group(one) is SUCCESS
    assert orders(engine) == ["1", "1", "2"]
    assert listener.__name__ == "work"


def test_a_failure_leaves_nothing_behind(engine: Engine, sessions: sessionmaker[Session]) -> None:
    (message,) = views("1")
    outcomes: list[Any] = [RuntimeError("boom"), FAILURE, None]

    @sql.idempotent(sessions, group="billing")
    def listener(message: MessageView, session: Session) -> ConsumeResult | None:
        work(message, session)
        outcome: ConsumeResult | Exception | None = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    with pytest.raises(RuntimeError):
        listener(message)
    assert listener(message) is FAILURE
    assert orders(engine) == []
    assert listener(message) is SUCCESS
    assert orders(engine) == ["1"]


@pytest.mark.parametrize("passes_over", [True, False])
def test_without_its_table_it_says_how_to_make_it(
    engine: Engine, sessions: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch, passes_over: bool
) -> None:
    (message,) = views("1")
    listener = sql.idempotent(sessions, group="billing")(work)
    if not passes_over:
        monkeypatch.setattr("popclient.sql.once._INSERT_UNLESS_THERE", {})
    tables.processed.drop(engine)
    missing = pytest.raises(sql.UnsupportedByStore, match=r"has no table popmq_processed; make it with: .*create_all")
    with missing:
        listener(message)
    with missing, sessions.begin() as session:
        sql.forget_processed(session, timedelta(0))
    sql.metadata.create_all(engine)
    assert listener(message) is SUCCESS


def test_another_failure_of_the_table_stays_as_it_is(engine: Engine, sessions: sessionmaker[Session]) -> None:
    (message,) = views("1")
    with engine.begin() as conn:
        conn.execute(text("ALTER TABLE popmq_processed RENAME COLUMN consumer_group TO other"))
    with pytest.raises(DBAPIError, match="consumer_group"):
        sql.idempotent(sessions, group="billing")(work)(message)


def test_two_at_once(engine: Engine, sessions: sessionmaker[Session]) -> None:
    """The second waits for the first, and then has nothing to do; or does it, when the first fails."""
    message, failing = views("1", "2")
    inside, go_on = threading.Event(), threading.Event()
    handled: list[str] = []

    @sql.idempotent(sessions, group="billing")
    def listener(message: MessageView, session: Session) -> ConsumeResult:
        work(message, session)
        handled.append(message.text)
        inside.set()
        assert go_on.wait(60)
        return FAILURE if handled == ["1", "2"] else SUCCESS

    for each in (message, failing):
        inside.clear()
        go_on.clear()
        first = threading.Thread(target=listener, args=(each,))
        first.start()
        assert inside.wait(60)
        second = threading.Thread(target=listener, args=(each,))
        second.start()
        go_on.set()
        first.join()
        second.join()
    assert handled == ["1", "2", "2"]
    assert orders(engine) == ["1", "2"]


async def test_asyncio(postgres_url: str) -> None:
    import asyncio

    (message,) = await asyncio.to_thread(views, "1")
    engine = create_async_engine(make_url(postgres_url).set(drivername="postgresql+psycopg"))
    async with engine.begin() as conn:
        await conn.run_sync(sql.metadata.create_all)
    done = []

    @sql.idempotent(async_sessionmaker(engine), group="billing")
    async def listener(message: MessageView, session: AsyncSession) -> ConsumeResult:
        await session.execute(text("SELECT 1"))
        done.append(message.text)
        return SUCCESS if len(done) > 1 else FAILURE

    assert aio.PushConsumer("127.0.0.1:1", "billing", "orders", listener).group == "billing"
    assert [await listener(message), await listener(message), await listener(message)] == [FAILURE, SUCCESS, SUCCESS]
    assert done == ["1", "1"]
    async with AsyncSession(engine) as session, session.begin():
        assert not await sql.first_time(session, message, group="billing")
        assert await sql.forget_processed(session, timedelta(0)) == 1
    await engine.dispose()


def test_handler_and_sessions_must_fit() -> None:
    async def later(_message: MessageView, _session: AsyncSession) -> None:
        """Nothing."""

    class Later:
        __call__ = staticmethod(later)

    for handler in (later, Later()):
        with pytest.raises(
            TypeError, match=r"handler .* is a coroutine function; give idempotent an async_sessionmaker"
        ):
            sql.idempotent(sessionmaker(), group="billing")(handler)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="idempotent takes a sessionmaker, not an object of type Engine"):
        sql.idempotent(create_engine("sqlite://"), group="billing")(work)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"handler .* is no coroutine function; write it with `async def`, or give"):
        sql.idempotent(async_sessionmaker(), group="billing")(work)  # type: ignore[arg-type]


def test_by_hand(engine: Engine) -> None:
    (message,) = views("1")
    for expected in (True, False):
        with Session(engine) as session, session.begin():
            assert sql.first_time(session, message, group="billing") is expected
    with Session(engine) as session:
        assert sql.first_time(session, message, group="other")
        session.rollback()
        assert sql.first_time(session, message, group="other")


def test_a_database_without_an_insert_that_passes_over(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    (message,) = views("1")
    monkeypatch.setattr("popclient.sql.once._INSERT_UNLESS_THERE", {})
    with Session(engine) as session, session.begin():
        assert sql.first_time(session, message, group="billing")
        assert not sql.first_time(session, message, group="billing")
        work(message, session)
    assert orders(engine) == ["1"]


def test_what_is_old_is_forgotten(engine: Engine) -> None:
    one, two = views("1", "2")
    with engine.begin() as conn:
        sql.first_time(conn, one, group="billing")
        conn.execute(tables.processed.update().values(processed_at_ms=0))
        sql.first_time(conn, two, group="billing")
    with engine.begin() as conn:
        assert sql.forget_processed(conn, timedelta(hours=72)) == 1
        assert list(conn.execute(select(tables.processed.c.message_id)).scalars()) == [two.message_id]


def test_a_push_consumer_whose_acks_get_lost(user: Engine) -> None:
    """Each message comes again and again until its ack arrives; the work is done once."""
    sql.metadata.create_all(user)
    deliveries: list[str] = []

    @sql.idempotent(sessionmaker(user), group="billing")
    def once(message: MessageView, session: Session) -> None:
        session.execute(text("INSERT INTO orders VALUES (:number)"), {"number": int(message.text)})

    def listener(message: MessageView) -> ConsumeResult:
        deliveries.append(message.text)
        once(message)
        # As if the ack had not got through.
        return SUCCESS if message.delivery_attempt > 1 else FAILURE

    with popserver.embedded() as broker, Producer(broker.endpoint) as producer, Admin(broker.endpoint) as admin:
        admin.create_group("billing", retry_intervals=[timedelta(milliseconds=10)])
        producer.send_many(Message("orders", f"{number}") for number in range(30)).raise_for_failures()
        with PushConsumer(broker.endpoint, "billing", "orders", listener):
            until_in_thread(lambda: len(deliveries) == 60)
    with user.connect() as conn:
        found = conn.execute(text("SELECT number FROM orders ORDER BY number")).scalars()
        assert list(found) == list(range(30))
