"""Why a message of a lite topic is where it is."""

from __future__ import annotations

from popserver.administration.message_facts import message_facts
from popserver.administration.why import facts, sentence
from popserver.lite.flow import LiteAction
from popserver.model.group import HistoryLevel, LiteModel
from popserver.model.names import Resource
from popserver.progress.lag import QueueLag
from popserver.progress.rules import Since
from tests.support.builders import GROUP, TOPIC
from tests.support.lite_broker import LiteBroker


async def why(lite: LiteBroker, message_id: str, group: Resource = GROUP) -> tuple[str, dict[str, str]]:
    times = lite.clock.times()
    found, _ = await lite.broker.engine.reader.read(lambda conn: message_facts(conn, group, TOPIC, message_id, times))
    return sentence(found, str), dict(facts(found, str))


async def lag(lite: LiteBroker) -> list[QueueLag]:
    return (await lite.broker.progress().lag(GROUP, TOPIC))[0]


async def test_who_may_take_it(lite: LiteBroker) -> None:
    await lite.sync("b")
    a1, _b1, a2 = await lite.send_lite("a", "b", "a")
    assert await lite.take(batch_size=1)
    assert (await why(lite, a1))[0] == "READY, but no client of group 'billing' subscribes to lite topic 'a'"
    assert (await why(lite, a1))[1]["clients that subscribe to it"] == "0"
    await lite.sync("a", client_id="one")
    assert (await why(lite, a1))[0] == "READY: the next receive of client 'one' may take it"
    said, evidence = await why(lite, a2)
    assert said == "READY: client 'one' has 1 message of lite topic 'a' to read before it"
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
    assert (await why(lite, second))[1]["first of its lite topic"] == first
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


HOUR_MS = 3_600_000
EXPIRED = "lite topic 'a' has expired, so the message counts as consumed in every group of mode POP"


async def test_an_expired_lite_topic(lite: LiteBroker) -> None:
    await lite.group(Resource("", "done"), history=HistoryLevel.ALL, lite=LiteModel.SHARED)
    await lite.broker.catalog.update_topic(TOPIC, lite_expires_ms=HOUR_MS)
    await lite.sync("x", client_id="c1")
    await lite.sync("a", client_id="c2", group=Resource("", "done"))
    sent, unread = await lite.send_lite("a", "a")
    assert await lite.take("c2", group=Resource("", "done"), batch_size=1) == [sent]
    assert (await why(lite, sent))[0].startswith("READY, but no client of group 'billing' subscribes to lite topic 'a'")
    await lite.advance(HOUR_MS + 60_001)
    said, evidence = await why(lite, sent)
    assert said == f"READY, but {EXPIRED}; the group's lag counts it until a receive of the group passes it"
    assert evidence == {"group": "billing", "state": "READY", "lite topic": "a", "lite topic expired": "yes"}
    assert sum(each.ready for each in await lag(lite)) == 2, "the scan has not passed them"
    assert await lite.got("c1") == []
    assert sum(each.ready for each in await lag(lite)) == 0, "now it has"
    said, evidence = await why(lite, sent)
    assert said == f"COMMIT: {EXPIRED}; history 'errors' does not keep whether group 'billing' acked it before"
    assert evidence["lite topic expired"] == "yes"
    assert (await why(lite, sent, Resource("", "done")))[0].startswith("COMMIT: group 'done' is done with it")
    assert await lite.got("c2", group=Resource("", "done")) == []
    assert (await why(lite, unread, Resource("", "done")))[0] == (
        f"COMMIT: {EXPIRED}; group 'done' was not done with it before"
    )
    (later,) = await lite.send_lite("a")
    assert (await why(lite, sent))[0].startswith("COMMIT: lite topic 'a' has expired")
    assert (await why(lite, later))[0] == "READY, but no client of group 'billing' subscribes to lite topic 'a'"


async def test_a_group_that_comes_after_the_expiry(lite: LiteBroker) -> None:
    await lite.broker.catalog.update_topic(TOPIC, lite_expires_ms=HOUR_MS)
    (sent,) = await lite.send_lite("a")
    await lite.group(Resource("", "late"))
    await lite.advance(HOUR_MS + 60_001)
    assert (await why(lite, sent, Resource("", "late")))[0] == (
        f"{EXPIRED}; group 'late' has not received from this topic yet"
    )


async def test_a_reset_brings_no_expired_message_again(lite: LiteBroker) -> None:
    await lite.broker.catalog.update_topic(TOPIC, lite_expires_ms=HOUR_MS)
    await lite.sync("a")
    (sent,) = await lite.send_lite("a")
    await lite.advance(HOUR_MS + 60_001)
    assert await lite.got() == []
    await lite.broker.progress().reset(GROUP, TOPIC, None, Since(1), dry_run=False)
    assert (await why(lite, sent))[0].startswith(f"READY, but {EXPIRED}")
    (later,) = await lite.send_lite("a")
    await lite.sync("a")
    assert (await why(lite, later))[0] == "READY: the next receive of client 'c1' may take it"
    assert (await lite.query("SELECT SUM(ready) AS ready FROM group_lag"))[0].ready == 2
    assert await lite.take() == [later]
    assert (await lite.query("SELECT SUM(ready) AS ready FROM group_lag"))[0].ready == 0


async def test_a_paused_lite_topic_is_resumed_by_its_name(lite: LiteBroker) -> None:
    await lite.sync("a")
    await lite.send_lite("a")
    await lite.take()
    (sent,) = await lite.send_lite("a")
    await lite.broker.progress().pause(GROUP, TOPIC, "a", paused_by="")
    assert (await why(lite, sent))[0] == (
        f"READY, but lite topic 'a' is paused for group 'billing' since {lite.clock.now_ms()}; resume"
        " it with: popmq group resume billing --topic orders --lite-topic 'a'"
    )
