"""Who gets which lite topics, and who may not."""

from __future__ import annotations

import asyncio
import re

import pytest

from popserver.engine.wakeups import PollKey
from popserver.lite import subscriptions
from popserver.lite.flow import LiteAction
from popserver.lite.registry import LiteClient
from popserver.lite.subscriptions import SILENT_MS
from popserver.messages import lite_topics
from popserver.model.errors import (
    BadRequest,
    IllegalLiteTopic,
    LiteSubscriptionQuotaExceeded,
    LiteTopicQuotaExceeded,
)
from popserver.model.group import LiteModel
from popserver.model.names import Resource
from tests.support.builders import GROUP, messages_of
from tests.support.lite_broker import LiteBroker, lite_messages
from tests.support.running_broker import until

OVERTAKEN_S = 0.1  # enough for a call to overtake another one


async def test_a_client_gets_its_lite_topics_and_no_others(lite: LiteBroker) -> None:
    await lite.sync("a", client_id="one")
    await lite.sync("b", "c", client_id="two")
    sent = dict(zip("abcd", await lite.send_lite("a", "b", "c", "d"), strict=True))
    assert await lite.take("one") == [sent["a"]]
    assert set(await lite.take("two")) == {sent["b"], sent["c"]}
    assert await lite.take("one") == await lite.take("two") == await lite.take("three") == []
    states = await lite.states()
    assert [state for message_id, state in states.items() if state == "READY"] == ["READY"]
    assert states[sent["d"]] == "READY"


async def test_what_a_client_asks_for_is_done_in_its_order(lite: LiteBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Node client tells that it has no lite topics, and subscribes before the answer."""
    complete = asyncio.create_task(lite.sync(action=LiteAction.COMPLETE_ADD))
    added = asyncio.create_task(lite.sync("a"))
    load = lite.broker.sessions.lite.clients.load

    async def slow_at_first(key: PollKey) -> LiteClient:
        monkeypatch.undo()
        await asyncio.wait({added}, timeout=OVERTAKEN_S)
        return await load(key)

    monkeypatch.setattr(lite.broker.sessions.lite.clients, "load", slow_at_first)
    await asyncio.gather(complete, added)
    sent = await lite.send_lite("a")
    assert await lite.take() == sent


async def test_what_nobody_subscribed_to_waits_for_a_subscriber(lite: LiteBroker) -> None:
    await lite.sync("a")
    sent = await lite.send_lite("a", "b", "b")
    assert await lite.take() == sent[:1]
    await lite.sync("b", client_id="two")
    assert await lite.take("two") == sent[1:]


async def test_a_lite_topic_goes_to_the_next_subscriber(lite: LiteBroker) -> None:
    await lite.sync("a", client_id="one")
    first, second, third = await lite.send_lite("a", "a", "a")
    assert await lite.take("one", batch_size=1) == [first]
    await lite.sync("a", client_id="one", action=LiteAction.PARTIAL_REMOVE)
    assert await lite.got("one") == []
    await lite.sync("a", client_id="two")
    assert await lite.take("two") == [second, third]


async def test_a_complete_set_replaces_what_was_there(lite: LiteBroker) -> None:
    await lite.sync("a", "b")
    await lite.sync("b", "c", "", " ", action=LiteAction.COMPLETE_ADD)
    sent = dict(zip("abc", await lite.send_lite("a", "b", "c"), strict=True))
    assert set(await lite.take()) == {sent["b"], sent["c"]}
    await lite.sync(action=LiteAction.COMPLETE_REMOVE)
    await lite.send_lite("b", "c")
    assert await lite.got() == []


async def test_a_poll_is_woken_for_its_lite_topics_only(lite: LiteBroker) -> None:
    await lite.sync("a", client_id="one")
    await lite.sync("b", client_id="two")
    one, two = await lite.poll(client_id="one"), await lite.poll(client_id="two")
    (sent,) = await lite.send_lite("b")
    assert [each.stored.message.message_id for each in await two] == [sent]
    assert lite.parked == 1
    await lite.sync("c", client_id="one")
    await lite.send_lite("c")
    assert [each.stored.message.message_group for each in await one] == ["c"]


async def test_a_poll_is_woken_when_a_lite_topic_comes_to_its_client(lite: LiteBroker) -> None:
    await lite.sync("a", client_id="one")
    poll = await lite.poll(client_id="two")
    sent = await lite.send_lite("a")
    await lite.sync("a", client_id="two")
    await lite.sync("a", client_id="one", action=LiteAction.PARTIAL_REMOVE)
    assert [each.stored.message.message_id for each in await poll] == sent


async def test_several_clients_may_share_a_lite_topic(lite: LiteBroker) -> None:
    await lite.sync("a", client_id="one")
    await lite.sync("a", client_id="two")
    first, second = await lite.send_lite("a", "a")
    assert await lite.take("two", batch_size=1) == [first]
    assert await lite.take("one") == [second]
    third = (await lite.send_lite("a"))[0]
    assert await lite.take("two") == [third], "the row names the other client"


async def test_an_exclusive_group_takes_a_lite_topic_from_the_former_client(lite: LiteBroker) -> None:
    await lite.exclusive()
    told: list[tuple[str, str]] = []

    async def tell(client_id: str, lite_topic: str) -> None:
        told.append((client_id, lite_topic))

    lite.broker.sessions.lite._notify = tell
    await lite.sync("a", "b", client_id="one")
    await lite.sync("a", client_id="two")
    await lite.broker.settle()
    assert told == [("one", "a")]
    sent = await lite.send_lite("a", "b")
    assert await lite.take("one") == sent[1:]
    assert await lite.take("two") == sent[:1]
    # The notice was lost: the client still names it.
    await lite.sync("a", "b", client_id="one", action=LiteAction.COMPLETE_ADD)
    await lite.broker.settle()
    assert told == [("one", "a"), ("one", "a")]
    await lite.sync("a", client_id="one")
    await lite.broker.settle()
    assert told[2:] == [("two", "a")], "it subscribes again, and has it"


async def test_a_wildcard_group_gets_every_lite_topic(lite: LiteBroker) -> None:
    await lite.exclusive(model=LiteModel.WILDCARD)
    await lite.sync(action=LiteAction.COMPLETE_ADD)
    for action in (LiteAction.PARTIAL_ADD, LiteAction.COMPLETE_ADD):
        with pytest.raises(BadRequest, match="has the lite model WILDCARD: its clients get all lite topics"):
            await lite.sync("a", action=action)
    sent = await lite.send_lite("a", "b", "c")
    assert set(await lite.take("any")) == set(sent)


async def test_an_ordinary_group_gets_every_lite_topic_in_order(lite: LiteBroker) -> None:
    other = Resource("", "readers")
    sent = await lite.send_lite("a", "b", "a")
    assert set(await lite.got(group=other)) == set(sent)
    assert await lite.got(group=other) == []
    with pytest.raises(BadRequest, match="has received messages as a group of ordinary consumers"):
        await lite.sync("a", group=other)


async def test_a_group_of_lite_topics_reads_no_other_topic(lite: LiteBroker) -> None:
    await lite.sync("a")
    plain = Resource("", "plain")
    await lite.topic(plain)
    with pytest.raises(BadRequest, match="is for lite topics, and topic 'plain' takes NORMAL messages"):
        await lite.receive(topic=plain)
    with pytest.raises(BadRequest, match="has no lite topics"):
        await lite.broker.sessions.lite.sync(GROUP, plain, "c1", LiteAction.PARTIAL_ADD, ["a"])
    with pytest.raises(BadRequest, match="takes no filter"):
        await lite.receive(wanted="tag")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("x" * 65, "65 characters"),
        ("user 42", "the character ' '"),
        ("ü", "the character 'ü'"),
        ("a/b", "the character '/'"),
        ("a\n", r"the character '\n'"),
    ],
)
async def test_a_name_that_is_no_lite_topic_is_refused(lite: LiteBroker, name: str, fault: str) -> None:
    with pytest.raises(IllegalLiteTopic, match=re.escape(f"has {fault}; allowed: 1 to 64 of A-Z a-z 0-9 _ -")):
        await lite.sync(name)


async def test_a_client_has_a_quota(lite: LiteBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "LITE_SUBSCRIPTIONS_MAX", 2)
    await lite.sync("a", "b")
    for action in (LiteAction.PARTIAL_ADD, LiteAction.COMPLETE_ADD):
        with pytest.raises(
            LiteSubscriptionQuotaExceeded, match="would subscribe to 3 lite topics of 'orders', at most 2"
        ):
            await lite.sync("a", "b", "c", action=action)
    await lite.sync("b", "c", action=LiteAction.COMPLETE_ADD)
    sent = await lite.send_lite("a", "c")
    assert await lite.take() == sent[1:]


async def test_a_topic_has_a_quota(lite: LiteBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lite_topics, "LITE_TOPICS_MAX", 2)
    await lite.send_lite("a", "b", "a")
    with pytest.raises(LiteTopicQuotaExceeded, match="'orders' has 2 lite topics"):
        await lite.broker.send(lite_messages("c"))
    await lite.send_lite("b")
    assert [row.name for row in await lite.query("SELECT name FROM lite_topic ORDER BY name")] == ["a", "b"]


async def test_only_lite_messages_go_to_such_a_topic(lite: LiteBroker) -> None:
    with pytest.raises(BadRequest, match="takes LITE messages, not NORMAL ones; give the message a lite topic"):
        await lite.broker.send(messages_of(1))
    plain = Resource("", "plain")
    await lite.topic(plain)
    with pytest.raises(BadRequest, match="takes NORMAL messages, not LITE ones; send to a topic that does"):
        await lite.broker.send(lite_messages("a", topic=plain))


async def test_a_client_that_is_silent_is_gone(lite: LiteBroker) -> None:
    await lite.sync("a", client_id="one")
    await lite.sync("b", client_id="two")
    await lite.advance(SILENT_MS - 1)
    await lite.sync("b", client_id="two", action=LiteAction.COMPLETE_ADD)
    await lite.advance(2_000)
    left = await lite.query("SELECT client_id FROM lite_subscription")
    assert [row.client_id for row in left] == ["two"]
    assert len(lite.broker.sessions.lite.clients) == 1


async def test_a_goodbye_ends_the_subscriptions(lite: LiteBroker) -> None:
    await lite.sync("a", client_id="one")
    lite.broker.sessions.clients.ended("one")
    await lite.broker.settle()
    assert await lite.query("SELECT client_id FROM lite_subscription") == []
    assert await lite.query("SELECT client_id FROM lite_client") == []
    await until(lambda: not len(lite.broker.sessions.lite.clients))
