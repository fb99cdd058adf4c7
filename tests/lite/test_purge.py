"""What is deleted leaves nothing of lite topics behind."""

from __future__ import annotations

import pytest

from popserver.engine import upkeep
from popserver.engine.wakeups import PollKey
from popserver.lite.subscriptions import SyncLite, TouchLite
from popserver.maintenance import purge
from popserver.members import lite_subscriptions
from popserver.model.errors import ConsumerGroupNotFound, TopicNotFound
from popserver.model.names import Resource
from popserver.model.topic import MessageType, NewTopic
from tests.support.builders import GROUP, TOPIC
from tests.support.lite_broker import LiteBroker, lite_messages

OTHER = Resource("", "other")
TABLES = ("lite_topic", "lite_client", "lite_subscription", "message_group_progress")


async def rows(lite: LiteBroker) -> list[int]:
    return [(await lite.query(f"SELECT COUNT(*) AS rows FROM {table}"))[0].rows for table in TABLES]


async def used(lite: LiteBroker) -> None:
    """Two topics, each with messages that wait, and a group with two clients in each."""
    await lite.broker.catalog.create_topic(NewTopic(OTHER, 1, (MessageType.LITE,)))
    for topic in (TOPIC, OTHER):
        for client_id in ("one", "two"):
            await lite.sync("a", "b", client_id=client_id, topic=topic)
        await lite.send([each for name in "ab" for each in lite_messages(name, 2, topic)])
        assert await lite.got("one", topic=topic, batch_size=1)
        assert await lite.got("three", topic=topic) == [], "the group has read all, and the others' messages wait"
    assert await rows(lite) == [4, 4, 8, 4]


async def test_a_deleted_topic_takes_its_lite_topics_and_their_subscriptions_along(lite: LiteBroker) -> None:
    await used(lite)
    await lite.broker.catalog.delete_topic(TOPIC)
    await lite.broker.settle()
    assert await rows(lite) == [2, 2, 4, 2]
    assert len(lite.broker.sessions.lite.clients) == 2, "the server knows the clients of the other topic"


async def test_a_deleted_group_takes_its_subscriptions_along(lite: LiteBroker) -> None:
    await used(lite)
    await lite.broker.catalog.delete_group(GROUP)
    await lite.broker.settle()
    assert await rows(lite) == [4, 0, 0, 0]
    assert len(lite.broker.sessions.lite.clients) == 0


async def test_a_step_of_the_purge_is_limited(lite: LiteBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    await used(lite)
    for each in (purge, upkeep, lite_subscriptions):
        monkeypatch.setattr(each, "STEP_ROWS_MAX", 2)
    steps: list[int] = []
    removed = lite.broker.maintenance._removals.rows

    def counted(what: str, count: int) -> None:
        steps.append(count)
        removed(what, count)

    monkeypatch.setattr(lite.broker.maintenance._removals, "rows", counted)
    await lite.broker.catalog.delete_group(GROUP)
    await lite.broker.settle()
    assert await rows(lite) == [4, 0, 0, 0]
    assert max(steps) <= 4, "a client with its two lite topics, or one message group in both topics"


async def test_a_client_that_subscribes_while_its_group_is_deleted_leaves_nothing(lite: LiteBroker) -> None:
    await lite.sync("a")
    group, topic = await lite.broker.catalog.group(GROUP), await lite.broker.catalog.topic(TOPIC)
    await lite.broker.catalog.delete_group(GROUP)
    await lite.broker.settle()
    with pytest.raises(ConsumerGroupNotFound, match="consumer group 'billing' does not exist"):
        await lite.broker.engine.writer.submit(SyncLite(group, topic, "late", ["a"]))
    assert not await lite.broker.engine.writer.submit(TouchLite(PollKey(group.group_id, topic.topic_id, "late")))
    assert await rows(lite) == [0, 0, 0, 0]


async def test_a_client_that_subscribes_while_its_topic_is_deleted_leaves_nothing(lite: LiteBroker) -> None:
    await lite.sync("a")
    group, topic = await lite.broker.catalog.group(GROUP), await lite.broker.catalog.topic(TOPIC)
    await lite.broker.catalog.delete_topic(TOPIC)
    with pytest.raises(TopicNotFound, match="topic 'orders' does not exist"):
        await lite.broker.engine.writer.submit(SyncLite(group, topic, "late", ["a"]))
    await lite.broker.settle()
    assert await rows(lite) == [0, 0, 0, 0]
