"""A user's transaction that stays open holds up nobody but itself."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, make_url, text

from popserver.lite.offsets import OffsetOption, OffsetPolicy
from popserver.maintenance import retention
from popserver.model.errors import TooManyRequests
from popserver.model.message import Delivery
from popserver.model.names import Resource
from popserver.model.states import State
from popserver.model.topic import MessageType, NewTopic
from popserver.postgres import connections, sessions
from popserver.settling import release
from tests.support.builders import GROUP, TOPIC, a_message
from tests.support.lite_broker import lite_broker
from tests.support.running_broker import RunningBroker, ids, running_broker

# A statement that waits for a lock waits until the time-out; a machine that is busy does not take so long.
LOCK_TIMEOUT_S = 60
PROMPT_S = 30.0
HOLD_MS = 30_000


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    patient = sessions.BEGIN.replace(f"'{sessions.LOCK_TIMEOUT_S}s'", f"'{LOCK_TIMEOUT_S}s'")
    monkeypatch.setattr(connections, "BEGIN", patient)


@pytest.fixture
def user(postgres_url: str) -> Iterator[Engine]:
    engine = create_engine(make_url(postgres_url).set(drivername="postgresql+psycopg"))
    yield engine
    engine.dispose()


@asynccontextmanager
async def with_steps(url: str) -> AsyncIterator[RunningBroker]:
    async with running_broker(url) as running:
        kinds = (MessageType.NORMAL, MessageType.FIFO)
        await running.broker.catalog.create_topic(NewTopic(TOPIC, 1, kinds))
        await running.group()
        yield running


def ack(conn: Connection, held: Delivery) -> None:
    conn.execute(text("SELECT popmq_ack(:handle)"), {"handle": held.receipt_handle})


def enqueue(conn: Connection, body: bytes, **more: Any) -> None:
    named = "".join(f", {name} => :{name}" for name in more)
    conn.execute(text(f"SELECT popmq_enqueue('orders', :body{named})"), {"body": body, **more})


async def promptly(work: Awaitable[Any]) -> Any:
    began = time.monotonic()
    result = await work
    took = time.monotonic() - began
    assert took < PROMPT_S, f"it took {took:.1f} s: it has waited for the user's transaction"
    return result


def in_group(message_group: str | None) -> Any:
    kind = MessageType.FIFO if message_group else MessageType.NORMAL
    return a_message(message_group=message_group, message_type=kind)


async def held(running: RunningBroker, message_group: str | None, **more: Any) -> Delivery:
    await running.send([in_group(message_group)])
    (delivery,) = await running.receive(**more)
    return delivery


async def orphan(running: RunningBroker) -> None:
    await running.broker.engine.writer.submit(release.AbandonHolds(client_id="c1"))


async def woken(running: RunningBroker) -> None:
    """As the commit's notice does."""
    running.broker.maintenance._sleeper.expect(0)
    await running.advance(1)


kinds = pytest.mark.parametrize("message_group", [None, "g"], ids=["unordered", "in-order"])


@kinds
async def test_everybody_else_goes_on(postgres_url: str, user: Engine, message_group: str | None) -> None:
    async with with_steps(postgres_url) as running:
        mine = await held(running, message_group, invisible_ms=HOLD_MS)
        with user.begin() as conn:
            ack(conn, mine)
            enqueue(conn, b"later")
            enqueue(conn, b"in order", message_group="g")
            for _ in range(3):
                await promptly(running.send([in_group(None), in_group("g"), in_group("other")]))
                got = await promptly(running.receive(client_id="c2", push=True))
                assert mine.stored.message.message_id not in ids(got)
                await promptly(running.change(got[0], HOLD_MS))
                await promptly(running.ack(*got[1:]))
        await woken(running)
        assert (await running.states())[mine.stored.message.message_id] is State.COMMIT


@kinds
async def test_while_it_is_open_the_hold_does_not_end(
    postgres_url: str, user: Engine, message_group: str | None
) -> None:
    """And the server neither waits for it nor looks at it all the time."""
    async with with_steps(postgres_url) as running:
        mine = await held(running, message_group, invisible_ms=HOLD_MS)
        with user.begin() as conn:
            ack(conn, mine)
            looks = Looks(running)
            await promptly(running.advance(HOLD_MS))
            other = await held(running, "other", invisible_ms=HOLD_MS, client_id="c2")
            await promptly(running.advance(HOLD_MS))
            (again,) = await promptly(running.receive())
            assert ids([again]) == ids([other])
            assert looks.taken <= 100
        await woken(running)
        await running.advance(1_000)
        assert (await running.states())[mine.stored.message.message_id] is State.COMMIT


@kinds
async def test_when_it_is_rolled_back_the_hold_ends_late(
    postgres_url: str, user: Engine, message_group: str | None
) -> None:
    async with with_steps(postgres_url) as running:
        mine = await held(running, message_group, invisible_ms=HOLD_MS)
        with user.connect() as conn:
            ack(conn, mine)
            await promptly(running.advance(HOLD_MS))
            assert await promptly(running.receive()) == []
            conn.rollback()
        await running.advance(1_000)
        (again,) = await running.receive()
        assert ids([again]) == ids([mine])


@kinds
async def test_its_client_is_gone(postgres_url: str, user: Engine, message_group: str | None) -> None:
    async with with_steps(postgres_url) as running:
        mine = await held(running, message_group, push=True, client_id="c1")
        other = await held(running, "other", push=True, client_id="c1")
        with user.connect() as conn:
            ack(conn, mine)
            running.broker.engine.background.submit("c1", lambda: orphan(running))
            await promptly(running.broker.settle())
            await promptly(running.advance(1_000))
            (again,) = await promptly(running.receive(client_id="c2"))
            assert ids([again]) == ids([other])
            conn.rollback()
        # The orphan is tried again until it has met them all.
        await running.advance(2_000)
        assert ids(await running.receive(client_id="c2")) == ids([mine])


@kinds
async def test_its_answer_broke_off(postgres_url: str, user: Engine, message_group: str | None) -> None:
    async with with_steps(postgres_url) as running:
        mine = await held(running, message_group, invisible_ms=HOLD_MS)
        other = await held(running, "other", invisible_ms=HOLD_MS)
        with user.connect() as conn:
            ack(conn, mine)
            running.broker.orphan([mine, other])
            await promptly(running.broker.settle())
            await promptly(running.advance(1_000))
            (again,) = await promptly(running.receive(client_id="c2"))
            assert ids([again]) == ids([other])
            conn.rollback()
        # It is tried again until it has met them all.
        await running.advance(2_000)
        assert ids(await running.receive(client_id="c2")) == ids([mine])


@kinds
async def test_nobody_got_it(postgres_url: str, user: Engine, message_group: str | None) -> None:
    async with with_steps(postgres_url) as running:
        mine = await held(running, message_group, invisible_ms=HOLD_MS)
        other = await held(running, "other", invisible_ms=HOLD_MS)
        with user.connect() as conn:
            ack(conn, mine)
            running.broker.withdraw([mine, other])
            await promptly(running.broker.settle())
            (again,) = await promptly(running.receive(client_id="c2"))
            assert ids([again]) == ids([other])
            conn.rollback()
        await running.advance(1_000)
        assert ids(await running.receive(client_id="c2")) == ids([mine])


@kinds
async def test_its_receive_is_repeated(postgres_url: str, user: Engine, message_group: str | None) -> None:
    """What the lost answer orphaned and its handler acks stays an orphan: nobody is waited for."""
    async with with_steps(postgres_url) as running:
        mine = await held(running, message_group, push=True, attempt_id="a-1")
        running.broker.orphan([mine])
        await running.broker.settle()
        with user.begin() as conn:
            ack(conn, mine)
            again = await promptly(running.receive(push=True, attempt_id="a-1"))
            assert ids(again) == ids([mine])
            await promptly(running.advance(5_000))
        await woken(running)
        await running.advance(1_000)
        assert (await running.states())[mine.stored.message.message_id] is State.COMMIT


@kinds
async def test_its_client_comes_back(postgres_url: str, user: Engine, message_group: str | None) -> None:
    async with with_steps(postgres_url) as running:
        mine = await held(running, message_group, push=True, client_id="c1")
        await orphan(running)
        with user.begin() as conn:
            ack(conn, mine)
            adopt = release.ExtendClientHolds("c1", running.clock.now_ms() + HOLD_MS)
            await promptly(running.broker.engine.writer.submit(adopt))
            await promptly(running.advance(5_000))
            assert await promptly(running.receive(client_id="c2")) == []
        await woken(running)
        await running.advance(1_000)
        assert (await running.states())[mine.stored.message.message_id] is State.COMMIT


@kinds
async def test_who_names_the_same_message_is_told(postgres_url: str, user: Engine, message_group: str | None) -> None:
    """A beat that prolongs the hold meets the ack of its own handler."""
    async with with_steps(postgres_url) as running:
        mine = await held(running, message_group, invisible_ms=HOLD_MS)
        with user.begin() as conn:
            ack(conn, mine)
            with pytest.raises(Exception, match="locked by another transaction"):
                await promptly(running.change(mine, HOLD_MS))
            with pytest.raises(Exception, match="locked by another transaction"):
                await promptly(running.broker.forward_to_dead_letter_queue(GROUP, TOPIC, mine.receipt_handle))
            (refusal,) = await promptly(running.ack(mine))
            assert "locked by another transaction" in str(refusal)
        await woken(running)
        assert (await running.states())[mine.stored.message.message_id] is State.COMMIT


async def test_a_lite_topic_is_not_moved_under_its_acks(postgres_url: str, user: Engine) -> None:
    async with lite_broker(postgres_url) as running:
        await running.sync("a")
        await running.send_lite("a", "a")
        (first, *_) = await running.receive(client_id="c1", invisible_ms=HOLD_MS)
        with user.begin() as conn:
            ack(conn, first)
            for option in (OffsetOption(OffsetPolicy.MIN), OffsetOption(OffsetPolicy.TAIL, 1)):
                with pytest.raises(TooManyRequests, match=r"lite topic 'a' .* is locked by another transaction"):
                    await promptly(running.sync("a", client_id="c2", offset=option))
            await promptly(running.sync("a", client_id="c3", offset=OffsetOption(OffsetPolicy.LAST)))
        await woken(running)
        assert (await running.states())[first.stored.message.message_id] is State.COMMIT
        await running.sync("a", client_id="c2", offset=OffsetOption(OffsetPolicy.MIN))


@kinds
async def test_retention_and_deletion_go_on(postgres_url: str, user: Engine, message_group: str | None) -> None:
    async with with_steps(postgres_url) as running:
        mine = await held(running, message_group, invisible_ms=HOLD_MS)
        with user.connect() as conn:
            ack(conn, mine)
            wish = retention.Retain(running.clock.now_ms() + 1)
            assert (await promptly(running.broker.engine.writer.submit(wish))).removed == 0
            await promptly(running.broker.catalog.delete_group(GROUP))
            await promptly(running.broker.catalog.delete_topic(TOPIC))
            await promptly(running.broker.settle())
            await promptly(running.topic(Resource("", "new")))
            conn.rollback()
        await running.advance(1_000)
        assert await running.query("SELECT 1 FROM delivery") == []
        assert await running.query("SELECT 1 FROM message") == []


class Looks:
    """How often the server has looked for what is due."""

    def __init__(self, running: RunningBroker) -> None:
        self.taken = 0
        maintenance = running.broker.maintenance
        end_due = maintenance._end_due

        async def counted() -> int | None:
            self.taken += 1
            return await end_due()

        maintenance._sleeper._work = counted
