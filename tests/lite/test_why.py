"""Why a message of a lite topic is where it is."""

from __future__ import annotations

from popserver.inspection.message_facts import message_facts
from popserver.inspection.why import facts, sentence
from popserver.lite.flow import LiteAction
from popserver.model.group import HistoryLevel, LiteModel
from popserver.model.names import Resource
from tests.support.builders import GROUP, TOPIC
from tests.support.lite import LiteBroker


async def why(lite: LiteBroker, message_id: str, group: Resource = GROUP) -> tuple[str, dict[str, str]]:
    found, _ = await lite.broker.reader.read(lambda conn: message_facts(conn, group, TOPIC, message_id))
    return sentence(found, str), dict(facts(found, str))


async def test_who_may_take_it(lite: LiteBroker) -> None:
    await lite.sync("b")
    a1, _b1, a2 = await lite.send_lite("a", "b", "a")
    assert await lite.take(batch_size=1)
    assert (await why(lite, a1))[0] == "READY, but no client of group 'billing' subscribes to lite topic 'a'"
    assert (await why(lite, a1))[1]["clients that subscribe to it"] == "0"
    await lite.sync("a", client_id="one")
    assert (await why(lite, a1))[0] == "READY: the next receive of client 'one' may take it"
    said, evidence = await why(lite, a2)
    assert said == "READY: client 'one' has 1 messages of lite topic 'a' to read before it"
    assert evidence == {
        "group": "billing",
        "state": "READY",
        "lite topic": "a",
        "messages ahead": "1",
        "clients that subscribe to it": "1",
        "subscriber": "one",
    }
    await lite.sync("a", client_id="two")
    assert (await why(lite, a1))[0] == "READY: the next receive of one of 2 clients may take it"


async def test_the_client_of_an_exclusive_group(lite: LiteBroker) -> None:
    await lite.exclusive()
    await lite.sync("a", client_id="one")
    (sent,) = await lite.send_lite("a")
    await lite.sync("a", client_id="two")
    assert (await why(lite, sent))[0] == "READY: the next receive of client 'two' may take it"
    await lite.receive(client_id="two")
    assert (await why(lite, sent))[0].startswith("INFLIGHT: client 'two' has it, attempt 1 of 17, until ")


async def test_a_wildcard_group(lite: LiteBroker) -> None:
    await lite.exclusive(model=LiteModel.WILDCARD)
    await lite.sync(action=LiteAction.COMPLETE_ADD)
    (sent,) = await lite.send_lite("a")
    assert (await why(lite, sent))[0] == "READY: the next receive of group 'billing' may take it"


async def test_a_suspended_lite_topic(lite: LiteBroker) -> None:
    await lite.sync("a")
    first, second = await lite.send_lite("a", "a")
    (held,) = await lite.receive(1, push=True)
    await lite.broker.change_invisible(GROUP, TOPIC, held.receipt_handle, 5_000, suspend=True)
    until = str(lite.clock.now_ms() + 5_000)
    assert (await why(lite, first))[0] == f"WAITING_RETRY: its consumer has suspended lite topic 'a' until {until}"
    assert (await why(lite, second))[0] == (
        f"READY, but lite topic 'a' is locked: message {first} comes first, WAITING_RETRY: client 'c1' has suspended it"
        f" until {until}"
    )
    await lite.advance(5_001)
    assert (await why(lite, first))[0] == "READY: the next receive of client 'c1' may take it"


async def test_a_lite_topic_that_is_suspended_after_a_failure(lite: LiteBroker) -> None:
    await lite.group(history=HistoryLevel.ALL, lite=LiteModel.SHARED)
    await lite.sync("a")
    (sent,) = await lite.send_lite("a")
    (held,) = await lite.receive(1, push=True)
    await lite.change(held, 1_000)
    await lite.advance(60_000)
    (held,) = await lite.receive(1, push=True)
    assert held.attempt == 2
    await lite.broker.change_invisible(GROUP, TOPIC, held.receipt_handle, 5_000, suspend=True)
    assert (await why(lite, sent))[0].startswith("WAITING_RETRY: its consumer has suspended lite topic 'a' until ")


async def test_a_simple_consumer_that_suspends(lite: LiteBroker) -> None:
    await lite.sync("a")
    (sent,) = await lite.send_lite("a")
    (held,) = await lite.receive(1)
    handle = await lite.broker.change_invisible(GROUP, TOPIC, held.receipt_handle, 5_000, suspend=True)
    until = str(lite.clock.now_ms() + 5_000)
    assert (await why(lite, sent))[0] == f"INFLIGHT: client 'c1' has suspended it until {until}"
    await lite.broker.change_invisible(GROUP, TOPIC, handle, 7_000, suspend=True)
    await lite.advance(7_001)
    assert [each.attempt for each in await lite.receive()] == [1], "no attempt counts, however often it is suspended"
