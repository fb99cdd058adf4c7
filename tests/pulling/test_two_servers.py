"""Progress and modes where two servers on one Postgres are asked at the same moment."""

from __future__ import annotations

import asyncio

import pytest

from popserver.engine.transaction import Transaction
from popserver.messages.stored import Append, append
from popserver.model.errors import BadRequest
from popserver.model.names import Resource
from popserver.model.topic import QueueName
from popserver.progress.rules import Edge
from popserver.pulling.offsets import NamedOffset
from popserver.pulling.rules import Committed
from tests.support.builders import GROUP, TOPIC, messages_of
from tests.support.running_broker import RunningBroker, rollbacks_of
from tests.support.several_brokers import SeveralBrokers

QUEUES = 8
WAITING_FOR_A_LOCK = (
    "SELECT COUNT(*) AS number FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


async def commit(broker: RunningBroker, offset: int, group: Resource = GROUP) -> list[Committed]:
    wishes = [NamedOffset(QueueName(TOPIC, number), offset) for number in range(QUEUES)]
    return await broker.broker.consuming.offsets.commit(group, wishes)


@pytest.fixture
async def both(servers: SeveralBrokers) -> SeveralBrokers:
    await servers.a.topic(queues=QUEUES)
    for _ in range(QUEUES):
        await servers.a.send(20)
    return servers


@pytest.mark.row("H5")
async def test_progress_never_goes_back_whoever_is_asked(both: SeveralBrokers) -> None:
    names = [QueueName(TOPIC, number) for number in range(QUEUES)]
    for offset in range(1, 20, 2):
        done = await asyncio.gather(commit(both.a, offset), commit(both.b, offset + 1))
        assert all(each.refusal is None for several in done for each in several)
        for broker in (both.a, both.b):
            stored = await broker.broker.consuming.offsets.fetch(GROUP, names)
            assert [(each.offset, each.resets) for each in stored] == [(offset + 1, 0)] * QUEUES


@pytest.mark.row("K8")
async def test_a_groups_first_uses_at_two_servers_fix_one_mode(both: SeveralBrokers) -> None:
    for number in range(5):
        group = Resource("", f"g{number}")
        done = await asyncio.gather(both.a.receive(group=group), commit(both.b, 1, group), return_exceptions=True)
        (refused,) = [each for each in done if isinstance(each, BaseException)]
        assert isinstance(refused, BadRequest)
        assert f"'{group}' consumes in mode" in str(refused)


async def test_a_commit_waits_for_progress_before_it_has_a_queue(both: SeveralBrokers) -> None:
    """As a reset does, which would wait for that queue: neither could go on."""
    await commit(both.a, 1)
    await both.b.broker.catalog.topic(TOPIC)
    await commit(both.b, 1)
    with rollbacks_of(both.a) as of_a, rollbacks_of(both.b) as of_b:
        for offset in range(2, 12):
            await asyncio.gather(
                both.a.send(QUEUES),
                commit(both.a, offset),
                both.b.send(QUEUES),
                both.b.broker.progress().reset(GROUP, TOPIC, None, Edge.BEGINNING, dry_run=False),
            )
    assert not of_a + of_b


@pytest.mark.row("I3")
async def test_a_search_by_time_passes_over_nothing_though_who_began_first_comes_last(servers: SeveralBrokers) -> None:
    a, database = servers.a, servers.b.broker.engine.database
    await a.topic()
    topic, start_ms = await a.broker.catalog.topic(TOPIC), servers.clock.now_ms()
    await a.send()
    with database.writing.connect() as conn:
        database.begin(conn)
        append(Transaction.at(conn, start_ms + 20), [Append(topic, messages_of(1))])
        waiting = asyncio.create_task(a.send(2))
        async with asyncio.timeout(60):
            while not (await a.query(WAITING_FOR_A_LOCK))[0].number:  # noqa: ASYNC110 - it is in the database
                await asyncio.sleep(0.005)
        database.commit(conn)
    assert [each.offset for each in await waiting] == [2, 3]
    rows = await a.query("SELECT stored_at_ms FROM message ORDER BY message_key")
    assert [row.stored_at_ms - start_ms for row in rows] == [0, 20, 20, 20]
    assert await a.broker.consuming.offsets.at(QueueName(TOPIC, 0), start_ms + 10) == 1
