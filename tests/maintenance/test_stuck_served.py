"""A server whose store keeps messages back: health, metrics and `why` say so, and the repair delivers them."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import Connection

from popclient import Message
from popclient.aio import Admin, Producer
from popserver.app import App
from popserver.database.invariants.stuck import STUCK
from popserver.engine.transaction import Read
from popserver.filters.tags import EVERYTHING
from popserver.maintenance import patrol, repair
from popserver.model.errors import StoreUnavailable
from popserver.model.names import Resource
from popserver.model.retry import Holder
from tests.support.http_client import get
from tests.support.running_broker import RunningBroker
from tests.support.waiting import eventually
from tests.web.conftest import started

NOT_OPEN = "a message group that is neither locked nor open"
CLOSE = (
    "UPDATE progress SET next_offset = (SELECT q.next_offset FROM queue q WHERE q.queue_id = progress.queue_id)",
    "INSERT INTO message_group_progress (group_id, queue_id, message_group, topic_id, next_offset)"
    " SELECT p.group_id, p.queue_id, m.message_group, m.topic_id, 0 FROM progress p"
    " JOIN message m ON (m.message_key >> 40) = p.queue_id GROUP BY 1, 2, 3, 4",
)


@pytest.fixture(autouse=True)
def _each_look_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patrol, "WAIT_S", 30.0)
    monkeypatch.setattr(patrol, "ROUND_S", 0.0)


async def damage(app: App, *statements: str) -> None:
    """Behind the server's back."""

    def work(conn: Connection) -> None:
        for each in statements:
            conn.exec_driver_sql(each)

    await app.broker.engine.writer.submit(Read(work))


async def receive(app: App, topic: str, wait_ms: int = 0) -> list[str]:
    """The bodies of what group `workers` is granted."""
    found = await app.broker.consuming.polls.receive(
        Resource("", "workers"),
        Resource("", topic),
        wanted=EVERYTHING,
        batch_size=32,
        invisible_ms=60_000,
        holder=Holder.SIMPLE,
        client_id="c1",
        poll_until_ms=app.clock.now_ms() + wait_ms,
    )
    return [each.stored.message.body.decode() for each in found]


async def counted(app: App, invariant: str) -> float:
    text = (await get(app.http_endpoint, "/metrics")).text
    (line,) = (each for each in text.splitlines() if "popmq_stuck_rows{" in each and invariant in each)
    return float(line.rpartition(" ")[2])


async def is_parked(app: App) -> bool:
    return app.broker.engine.wakeups.parked > 0


async def is_counted(app: App) -> bool:
    return await counted(app, NOT_OPEN) > 0


async def nothing_is_wrong(app: App) -> bool:
    return await counted(app, NOT_OPEN) == 0 and not await warnings(app)


async def warnings(app: App) -> list[str]:
    found: list[str] = (await get(app.http_endpoint, "/readyz")).document["warnings"]
    return found


async def test_a_closed_message_group_is_counted_named_and_repaired(database_url: str) -> None:
    async with started(database_url) as app, Admin(app.endpoint) as admin, Producer(app.endpoint) as producer:
        await admin.create_topic("ordered", accept_message_types=["FIFO"], queue_count=2)
        await admin.create_group("workers")
        assert await receive(app, "ordered") == []
        sent = [await producer.send("ordered", f"{n}", message_group="g") for n in range(3)]
        assert await counted(app, NOT_OPEN) == 0
        await damage(app, *CLOSE)
        assert await receive(app, "ordered") == [], "it never comes"
        await eventually(lambda: is_counted(app), "counted", within_s=30)
        assert any(NOT_OPEN in each and "popmq repair" in each for each in await warnings(app))
        health = await admin.health()
        assert health.ready and any(NOT_OPEN in each for each in health.warnings)
        said = (await admin.why(sent[0].message_id, group="workers")).sentence
        assert said.startswith("READY, and stuck: no message of its message group is held or waits")
        tried = await admin.repair(dry_run=True)
        assert (tried.found, tried.repaired) == (1, 0)
        (row,) = tried.rows
        assert (row.invariant, row.group, row.topic, row.message_group) == (NOT_OPEN, "workers", "ordered", "g")
        assert await receive(app, "ordered") == [], "a dry run changes nothing"
        done = await admin.repair()
        assert (done.found, done.repaired) == (1, 1)
        assert await receive(app, "ordered") == ["0", "1", "2"]
        await eventually(lambda: nothing_is_wrong(app), "sound again", within_s=30)
        assert (await admin.repair()).found == 0


async def test_a_waiting_consumer_gets_what_a_repair_frees(database_url: str) -> None:
    """The repair wakes polls, on this server by its topic and on others by a notification."""
    async with started(database_url) as app, Admin(app.endpoint) as admin, Producer(app.endpoint) as producer:
        await admin.create_topic("ordered", accept_message_types=["FIFO"], queue_count=2)
        await admin.create_group("workers")
        assert await receive(app, "ordered") == []
        await producer.send("ordered", "first", message_group="g")
        await damage(app, *CLOSE)
        waiting = asyncio.create_task(receive(app, "ordered", 120_000))
        await eventually(lambda: is_parked(app), "parked", within_s=30)
        assert (await admin.repair()).repaired == 1
        assert await asyncio.wait_for(waiting, 30) == ["first"]


async def test_a_large_store_is_looked_through_in_pages(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "PAGE_ROWS", 3)
    monkeypatch.setattr(repair, "READ_S", 0.0)
    monkeypatch.setattr(patrol, "PAUSE_FACTOR", 0)
    async with started(database_url) as app, Admin(app.endpoint) as admin, Producer(app.endpoint) as producer:
        await admin.create_topic("ordered", accept_message_types=["FIFO"], queue_count=2)
        await admin.create_group("workers")
        assert await receive(app, "ordered") == []
        await producer.send_many([Message("ordered", "x", message_group=f"g{n}") for n in range(20)])
        await damage(app, *CLOSE)
        assert await counted(app, NOT_OPEN) == 20
        monkeypatch.setattr(patrol, "LISTED_MAX", 8)
        done = await admin.repair()
        assert (len(done.rows), done.found, done.repaired) == (8, 20, 20)
        assert len(await receive(app, "ordered")) == 20


async def test_after_a_round_that_was_ended_before_it_began_the_next_one_follows(broker: RunningBroker) -> None:
    """A repair ends the round that runs. A request does not wait for a round of a large store."""
    rounds = broker.broker.patrol
    with pytest.MonkeyPatch.context() as large:
        large.setattr(patrol, "WAIT_S", 0.0)
        assert await rounds.counts() is None
        await rounds.close()
    assert await rounds.counts() == {}


def test_each_says_something_else() -> None:
    assert len({each.name for each in STUCK}) == len(STUCK)
    assert all(each.symptom and each.effect and each.repair for each in STUCK)


async def test_a_store_that_is_away_is_told_once_a_minute(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def away(*_: object) -> None:
        raise StoreUnavailable("the database does not answer")

    monkeypatch.setattr(broker.broker.engine.reader, "look_up", away)
    for _ in range(3):
        assert await broker.broker.patrol.counts() is None
    assert "".join(capsys.readouterr()).count("the store was not checked for stuck rows") == 1
