"""Lite topics end a while after their last message."""

from __future__ import annotations

import pytest

from popserver.lite import flow
from popserver.lite.offsets import OffsetOption, OffsetPolicy
from popserver.messages import lite_topics
from popserver.model.errors import BadRequest
from popserver.model.names import Resource
from popserver.model.states import State
from popserver.model.topic import MessageType, NewTopic
from tests.support.builders import GROUP, TOPIC
from tests.support.lite_broker import LiteBroker
from tests.support.running_broker import ids

HOUR_MS = 3_600_000


async def names(lite: LiteBroker) -> list[str]:
    return [row.name for row in await lite.query("SELECT name FROM lite_topic ORDER BY name")]


async def test_an_expired_lite_topic_is_consumed_and_a_new_one_begins(lite: LiteBroker) -> None:
    await lite.broker.catalog.update_topic(TOPIC, lite_expires_ms=HOUR_MS)
    await lite.sync("a", client_id="one")
    await lite.send_lite("a", "b", "b")
    await lite.take("one")
    await lite.advance(HOUR_MS // 2)
    await lite.send_lite("a")
    await lite.advance(HOUR_MS // 2 + 60_000)
    assert await names(lite) == ["a"]
    count = "SELECT lite_topics FROM topic WHERE name = 'orders'"
    assert [row.lite_topics for row in await lite.query(count)] == [1]
    await lite.sync("b", client_id="two")
    assert await lite.got("two") == []
    assert set((await lite.states()).values()) == {State.COMMIT, State.READY}
    later = await lite.send_lite("b")
    assert await lite.take("two") == later
    assert await names(lite) == ["a", "b"]


async def test_a_group_that_has_not_read_so_far_gets_no_expired_ones(lite: LiteBroker) -> None:
    await lite.broker.catalog.update_topic(TOPIC, lite_expires_ms=HOUR_MS)
    await lite.sync("a")
    await lite.send_lite("a")
    await lite.advance(HOUR_MS + 60_001)
    assert await names(lite) == []
    later = await lite.send_lite("a")
    await lite.sync("a", client_id="c1")
    assert await lite.take() == later


async def test_one_that_remains_is_delivered_from_its_first_message_on(lite: LiteBroker) -> None:
    """Also to a group that reads its queue after others have expired there."""
    await lite.broker.catalog.update_topic(TOPIC, lite_expires_ms=HOUR_MS)
    await lite.sync("a")
    first, *_ = await lite.send_lite("a", *"bcdef")
    await lite.advance(HOUR_MS // 2)
    (second,) = await lite.send_lite("a")
    await lite.advance(HOUR_MS // 2 + 60_001)
    assert await names(lite) == ["a"]
    await lite.sync("a", "b")
    assert await lite.take() == [first, second]


async def test_an_offset_option_leads_to_no_message_of_an_expired_one(lite: LiteBroker) -> None:
    await lite.broker.catalog.update_topic(TOPIC, lite_expires_ms=HOUR_MS)
    await lite.sync("a")
    await lite.send_lite("a", "a")
    await lite.take()
    await lite.advance(HOUR_MS + 60_001)
    assert await names(lite) == []
    options = [
        OffsetOption(OffsetPolicy.MIN),
        OffsetOption(OffsetPolicy.OFFSET, 1),
        OffsetOption(OffsetPolicy.TAIL, 5),
        OffsetOption(OffsetPolicy.TIMESTAMP, 0),
    ]
    for number, option in enumerate(options):
        await lite.sync("a", client_id=f"before-{number}", offset=option)
        assert await lite.got(f"before-{number}") == [], option
    later = await lite.send_lite("a")
    for number, option in enumerate(options):
        await lite.sync("a", client_id=f"after-{number}", offset=option)
        assert await lite.take(f"after-{number}") == later, option


async def test_a_lite_topic_whose_message_is_held_stays(lite: LiteBroker) -> None:
    await lite.broker.catalog.update_topic(TOPIC, lite_expires_ms=HOUR_MS)
    await lite.sync("a")
    sent = await lite.send_lite("a")
    held = await lite.receive(invisible_ms=3 * HOUR_MS)
    await lite.advance(HOUR_MS + 60_001)
    assert await names(lite) == ["a"]
    assert ids(held) == sent
    assert await lite.ack(*held) == [None]
    await lite.advance(60_001)
    assert await names(lite) == []


async def test_without_a_life_only_those_without_messages_go(lite: LiteBroker) -> None:
    await lite.sync("a")
    await lite.send_lite("a")
    await lite.take()
    await lite.advance(71 * HOUR_MS)
    assert await names(lite) == ["a"]
    await lite.advance(2 * HOUR_MS)
    await lite.advance(60_001)
    assert await names(lite) == []


async def test_the_types_and_the_life_of_a_topic_are_checked(lite: LiteBroker) -> None:
    catalog, other = lite.broker.catalog, Resource("", "other")
    with pytest.raises(BadRequest, match="takes LITE and NORMAL messages; a topic of lite topics takes LITE"):
        await catalog.create_topic(NewTopic(other, 1, (MessageType.NORMAL, MessageType.LITE)))
    with pytest.raises(BadRequest, match="has no lite topics that could expire"):
        await catalog.create_topic(NewTopic(other, 1, lite_expires_ms=HOUR_MS))
    with pytest.raises(BadRequest, match="expire after 1000 ms without a message; allowed: 60000 ms"):
        await catalog.update_topic(TOPIC, lite_expires_ms=1_000)
    with pytest.raises(BadRequest, match="neither becomes nor ceases to be one of lite topics"):
        await catalog.update_topic(TOPIC, accepts=(MessageType.NORMAL,))
    await catalog.update_topic(TOPIC, lite_expires_ms=HOUR_MS)
    assert (await catalog.topic(TOPIC)).lite_expires_ms == HOUR_MS
    await catalog.update_topic(TOPIC, lite_expires_ms=0)
    assert (await catalog.topic(TOPIC)).lite_expires_ms is None
    assert GROUP.name == "billing"


async def test_those_that_stay_do_not_hide_the_others(lite: LiteBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (lite_topics, flow):
        monkeypatch.setattr(module, "STEP_ROWS_MAX", 2)
    await lite.broker.catalog.update_topic(TOPIC, lite_expires_ms=HOUR_MS)
    await lite.sync("a", "b", "c", "d")
    await lite.send_lite("a", "b")
    assert len(await lite.receive(invisible_ms=9 * HOUR_MS)) == 2
    await lite.send_lite("c", "d")
    await lite.take()
    await lite.advance(2 * HOUR_MS)
    assert await names(lite) == ["a", "b"]
