"""What the broker remembers of topics and groups, and when it must not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from popserver.catalog.flow import FIRST_USES_LOGGED
from popserver.model.errors import CommitUnknown, TopicNotFound
from popserver.model.names import Resource, dead_letter_topic
from tests.support.builders import GROUP, TOPIC, a_message
from tests.support.running_broker import RunningBroker, ids, running_broker, unheard_commit, watched


async def test_what_is_known_is_not_looked_up_again(broker: RunningBroker) -> None:
    await broker.send()
    await broker.receive()
    looks: list[object] = []
    read = broker.broker.engine.reader.read
    broker.broker.engine.reader.read = lambda look: looks.append(look) or read(look)  # type: ignore[method-assign, assignment]
    for _ in range(5):
        await broker.send()
        await broker.ack(*await broker.receive())
    assert looks == []


async def test_a_deleted_topic_is_forgotten_and_made_anew(broker: RunningBroker) -> None:
    await broker.send()
    old = await broker.broker.catalog.topic(TOPIC)
    await broker.broker.catalog.delete_topic(TOPIC)
    (sent,) = await broker.send()
    new = await broker.broker.catalog.topic(TOPIC)
    assert new.topic_id > old.topic_id
    assert ids(await broker.receive()) == [sent.message_id]


@pytest.mark.parametrize("kind", ["topic", "group"])
async def test_a_look_that_a_deletion_overtook_is_not_remembered(sqlite_url: str, kind: str) -> None:
    """Or it would be remembered for as long as the server runs, and every send and receive be refused."""
    async with running_broker(sqlite_url) as first:
        await first.send()
        await first.receive()
        clock = first.clock
    async with running_broker(sqlite_url, clock=clock) as broker:
        catalog, read = broker.broker.catalog, broker.broker.engine.reader.read
        found, go_on = asyncio.Event(), asyncio.Event()

        async def slow_read(look: Callable[..., Any]) -> Any:
            answer = await read(look)
            found.set()
            await go_on.wait()
            return answer

        broker.broker.engine.reader.read = slow_read  # type: ignore[method-assign, assignment]
        looking = asyncio.ensure_future(catalog.topic(TOPIC) if kind == "topic" else catalog.group(GROUP))
        await found.wait()
        await (catalog.delete_topic(TOPIC) if kind == "topic" else catalog.delete_group(GROUP))
        go_on.set()
        await asyncio.gather(looking, return_exceptions=True)
        broker.broker.engine.reader.read = read  # type: ignore[method-assign]
        await broker.broker.settle()
        assert len(await broker.send()) == 1
        assert len(await broker.receive()) >= 1


@pytest.mark.parametrize("kind", ["topic", "group"])
@pytest.mark.parametrize("end", ["unheard of", "caller gone"])
async def test_a_deletion_whose_answer_is_lost_is_one(sqlite_url: str, kind: str, end: str) -> None:
    async with running_broker(sqlite_url) as broker:
        await broker.send()
        await broker.receive()
        catalog = broker.broker.catalog
        if end == "unheard of":
            unheard_commit(broker.broker)
        deleting = asyncio.create_task(catalog.delete_topic(TOPIC) if kind == "topic" else catalog.delete_group(GROUP))
        await asyncio.sleep(0)
        if end == "caller gone":
            deleting.cancel()
        (error,) = await asyncio.gather(deleting, return_exceptions=True)
        assert isinstance(error, CommitUnknown | asyncio.CancelledError)
        await broker.broker.settle()
        table = {"topic": "topic", "group": "consumer_group"}[kind]
        assert await broker.query(f"SELECT COUNT(*) FROM {table} WHERE deleted_at_ms IS NOT NULL") == [(0,)]
        assert len(await broker.send()) == 1
        assert len(await broker.receive()) >= 1


async def test_a_topic_that_is_gone_is_looked_up_again(broker: RunningBroker) -> None:
    await broker.send()
    catalog = broker.broker.catalog
    old = await catalog.topic(TOPIC)
    await catalog.delete_topic(TOPIC)
    await broker.broker.settle()
    catalog._topics[TOPIC] = old
    with pytest.raises(TopicNotFound):
        await broker.send()
    assert len(await broker.send()) == 1


async def test_what_is_deleted_is_removed_though_the_store_refuses_at_first(broker: RunningBroker) -> None:
    await broker.send()

    def fail() -> None:
        raise OperationalError("DELETE", {}, Exception("database is locked"))

    with watched(broker.broker.engine.database, "DELETE", fail):
        await broker.broker.catalog.delete_topic(TOPIC)
        await broker.advance(5_000)
    assert await broker.query("SELECT COUNT(*) FROM message") == [(1,)]
    await broker.advance(1_000)
    assert await broker.query("SELECT COUNT(*) FROM message") == [(0,)]


async def test_a_deleted_groups_dead_letter_topic_is_forgotten_too(broker: RunningBroker) -> None:
    dead_letters, readers = Resource("", "%DLQ%billing"), Resource("", "readers")
    await broker.send([a_message(), a_message()])
    one, _ = await broker.receive()
    await broker.broker.forward_to_dead_letter_queue(GROUP, TOPIC, one.receipt_handle)
    assert len(await broker.receive(group=readers, topic=dead_letters)) == 1
    await broker.broker.catalog.delete_group(GROUP)
    await broker.broker.settle()
    assert await broker.receive(group=readers, topic=dead_letters) == []
    granted = await broker.receive()
    await broker.broker.forward_to_dead_letter_queue(GROUP, TOPIC, granted[0].receipt_handle)
    assert len(await broker.receive(group=readers, topic=dead_letters)) == 1


async def test_a_name_that_is_created_on_first_use_is_in_the_log_once(broker: RunningBroker) -> None:
    catalog, oders = broker.broker.catalog, TOPIC._replace(name="oders")
    with capture_logs() as logs:
        await asyncio.gather(*(catalog.topic(oders) for _ in range(3)))
        await asyncio.gather(*(catalog.group(GROUP) for _ in range(3)))
        await catalog.topic(dead_letter_topic(GROUP))
    told = [each for each in logs if each["event"] == "created on first use"]
    assert [(each["log_level"], each.get("topic"), each.get("group")) for each in told] == [
        ("info", "oders", None),
        ("info", None, str(GROUP)),
    ]


async def test_names_by_the_thousand_do_not_fill_the_log(broker: RunningBroker) -> None:
    with capture_logs() as logs:
        for number in range(FIRST_USES_LOGGED + 3):
            await broker.broker.catalog.group(GROUP._replace(name=f"g{number}"))
    assert sum(each["event"] == "created on first use" for each in logs) == FIRST_USES_LOGGED
