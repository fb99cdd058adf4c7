"""What members are told of their group, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from sqlalchemy import text

from popserver.database.notifications import EVERYTHING, Notification
from popserver.engine.transaction import Phase, Request, Transaction, carries_out
from popserver.members import sql as members_sql
from popserver.members.notices import NOTIFY_PAUSE_MS, Listener
from popserver.members.rules import GroupView
from tests.support.builders import GROUP
from tests.support.members import Heard, a_group, come
from tests.support.running_broker import RunningBroker, until
from tests.support.several_brokers import SeveralBrokers


@pytest.fixture
async def broker(pair: tuple[RunningBroker, RunningBroker]) -> RunningBroker:
    await pair[0].group()
    return pair[0]


async def settled(broker: RunningBroker) -> None:
    await broker.advance(NOTIFY_PAUSE_MS)


@pytest.mark.row("G6")
async def test_members_are_told_who_comes_and_who_goes(broker: RunningBroker) -> None:
    heard = Heard(broker)
    await come(broker)
    await settled(broker)
    await until(lambda: len(heard.told) == 1)
    broker.broker.sessions.clients.ended("c1")
    await settled(broker)
    await until(lambda: len(heard.told) == 2)
    assert heard.told[0].members != heard.told[1].members


async def test_many_changes_at_once_are_told_in_one_or_two(broker: RunningBroker) -> None:
    heard = Heard(broker)
    await asyncio.gather(*(come(broker, f"c{number}") for number in range(50)))
    await settled(broker)
    await settled(broker)
    latest = await broker.broker.sessions.group_members.notices.view(GROUP)
    await until(lambda: heard.told[-1:] == [latest])
    assert len(heard.told) <= 3


async def test_what_is_known_is_not_told_again(broker: RunningBroker) -> None:
    heard = Heard(broker)
    await come(broker)
    await settled(broker)
    await until(lambda: len(heard.told) == 1)
    await come(broker)
    broker.broker._on_notification(Notification("", signals=frozenset({EVERYTHING})))
    await settled(broker)
    assert len(heard.told) == 1


async def test_other_groups_are_not_told(broker: RunningBroker) -> None:
    await broker.group(GROUP._replace(name="shipping"))
    heard = Heard(broker, GROUP._replace(name="shipping"))
    await come(broker)
    await settled(broker)
    assert heard.told == []


async def test_nothing_is_kept_of_streams_that_have_ended(broker: RunningBroker) -> None:
    heard, notices = Heard(broker), broker.broker.sessions.group_members.notices
    await come(broker)
    await come(broker, "c2")
    notices.leave(heard.listener)
    for name in ("c1", "c2"):
        broker.broker.sessions.clients.ended(name)
    await settled(broker)
    assert (notices._listeners, notices._waiting, notices._paused) == ({}, set(), set())
    heard = Heard(broker)
    await come(broker, "c3")
    await settled(broker)
    await until(lambda: len(heard.told) == 1)


@pytest.mark.row("G6")
async def test_members_at_other_servers_are_told(servers: SeveralBrokers) -> None:
    await a_group(servers)
    heard = [Heard(servers.a), Heard(servers.b)]
    await come(servers.a)
    await until(lambda: all(len(each.told) == 1 for each in heard))
    await servers.advance(NOTIFY_PAUSE_MS)
    servers.a.broker.sessions.clients.ended("c1")
    await until(lambda: all(len(each.told) == 2 for each in heard))
    assert heard[0].told == heard[1].told


class _Reset(Request[None]):
    phase = Phase.RESET


@carries_out(_Reset)
def _reset(tx: Transaction, requests: Sequence[_Reset]) -> list[None]:
    tx.conn.execute(text("UPDATE progress SET resets = resets + 1"))
    members_sql.notify_reset(tx, GROUP)
    return [None] * len(requests)


async def test_a_reset_is_told_at_every_server(servers: SeveralBrokers) -> None:
    await a_group(servers)
    await servers.a.topic()
    await servers.a.receive()
    heard = [Heard(servers.a), Heard(servers.b)]

    await servers.a.broker.engine.writer.submit(_Reset())
    await until(lambda: all([told.resets for told in each.told] == [1] for each in heard))


# ---- One stream ----


class Slow:
    """A stream that takes a frame only when it is let."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.may = asyncio.Semaphore(0)
        self.listener = Listener(GROUP)

    async def tell(self, standing: GroupView) -> None:
        await self.may.acquire()
        self.told.append(standing.members)


async def test_what_came_before_the_answer_is_told_after_it() -> None:
    stream = Slow()
    stream.may.release()
    stream.listener.update(GroupView(2, 0))
    stream.listener.open(GroupView(1, 0), stream.tell)
    await until(lambda: stream.told == [2])


async def test_what_the_answer_said_is_not_told_again() -> None:
    stream = Slow()
    stream.listener.update(GroupView(1, 0))
    stream.listener.open(GroupView(1, 0), stream.tell)
    assert stream.listener._task is None


async def test_a_slow_stream_is_told_the_latest_alone() -> None:
    stream = Slow()
    stream.listener.open(None, stream.tell)
    for number in range(5):
        stream.listener.update(GroupView(number, 0))
        await asyncio.sleep(0)
    stream.may.release()
    stream.may.release()
    await until(lambda: stream.told == [0, 4])
    await until(lambda: stream.listener._task is None)


async def test_a_broken_stream_harms_nobody() -> None:
    async def broken(_: GroupView) -> None:
        raise ConnectionResetError

    listener = Listener(GROUP)
    listener.open(None, broken)
    listener.update(GroupView(1, 0))
    await until(lambda: listener._task is None)
    listener.close()
