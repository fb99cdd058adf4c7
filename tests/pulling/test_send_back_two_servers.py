"""Handing back where several servers share a database: once, whoever is asked and whoever finds it due."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from popserver.engine.transaction import Transaction
from popserver.filters import TagFilter
from popserver.maintenance import retention
from popserver.model.names import dead_letter_topic, retry_topic
from popserver.model.topic import QueueName
from popserver.pulling import send_back
from popserver.pulling.flow import PullRequest
from popserver.pulling.send_back_flow import HandedBack
from tests.support.builders import GROUP, TOPIC
from tests.support.open_store import SECOND, open_store
from tests.support.running_broker import RunningBroker, until
from tests.support.send_back import a_failure, pull_group
from tests.support.several_brokers import SeveralBrokers

COUNT = 40


async def hand_back(server: RunningBroker, offset: int, delay_level: int = 0) -> bool:
    failed = HandedBack(QueueName(TOPIC, 0), offset, delay_level)
    return await server.broker.consuming.retries.send_back(GROUP, "c1", failed)


async def ids_in(server: RunningBroker, topic: str) -> list[bytes]:
    query = "SELECT m.message_id FROM message m JOIN topic t ON t.topic_id = m.topic_id WHERE t.name = :name"
    return [bytes(row.message_id) for row in await server.query(query, name=topic)]


@pytest.mark.row("E9")
async def test_all_ask_both_and_each_comes_once(servers: SeveralBrokers) -> None:
    await servers.a.topic()
    await servers.a.send(COUNT)
    asked = (hand_back(each, offset) for offset in range(COUNT) for each in (servers.a, servers.b))
    assert await asyncio.gather(*asked) == [False] * 2 * COUNT
    assert len(await servers.a.query("SELECT 1 FROM delivery")) == COUNT
    await servers.advance(10 * SECOND)
    copies = await ids_in(servers.b, retry_topic(GROUP).name)
    assert len(copies) == len(set(copies)) == COUNT
    assert await servers.a.query("SELECT 1 FROM delivery") == []


async def test_all_give_it_up_and_each_dies_once(servers: SeveralBrokers) -> None:
    await servers.a.topic()
    await servers.a.send(COUNT)
    asked = (hand_back(each, offset, -1) for offset in range(COUNT) for each in (servers.a, servers.b))
    assert await asyncio.gather(*asked) == [True] * 2 * COUNT
    assert len(await ids_in(servers.b, dead_letter_topic(GROUP).name)) == COUNT


async def test_a_pull_on_one_is_woken_by_what_falls_due_on_the_other(servers: SeveralBrokers) -> None:
    await servers.a.topic()
    await servers.a.send(1)
    until_ms = servers.clock.now_ms() + 15 * SECOND
    wish = PullRequest(GROUP, retry_topic(GROUP), 0, 0, 32, TagFilter(), until_ms)
    waiting = asyncio.create_task(servers.b.broker.consuming.pulls.pull(wish))
    await until(lambda: servers.b.broker.consuming.pulls.parked.count == 1)
    await hand_back(servers.a, 0)
    await servers.advance(10 * SECOND)
    assert len((await asyncio.wait_for(waiting, 60)).messages) == 1


def test_what_is_being_handed_back_is_not_removed_beside_it(postgres_url: str) -> None:
    with open_store(postgres_url) as one, open_store(postgres_url) as other:
        topic = one.topic()
        group = pull_group(one)
        one.send(topic, 2)
        one.database.begin(one.conn)
        assert _handed_back(one, a_failure(group, topic, 1)) == [False]
        assert other.one(retention.retain, retention.Retain(one.now_ms + 1)).removed == 0
        other.send(topic)
        one.conn.exec_driver_sql("COMMIT")
        assert other.one(retention.retain, retention.Retain(one.now_ms + 1)).removed == 1


def _handed_back(store: Any, request: send_back.SendBack) -> Sequence[Any]:
    return send_back.send_back(Transaction.at(store.conn, store.now_ms), [request])
