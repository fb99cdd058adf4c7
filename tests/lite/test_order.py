"""Order within a lite topic, retries, suspension, dead letters."""

from __future__ import annotations

from popserver.database.check import check_integrity
from popserver.lite.offsets import OffsetOption, OffsetPolicy
from popserver.model.states import State
from tests.support.builders import GROUP, TOPIC
from tests.support.lite_broker import LiteBroker, lite_topics_of
from tests.support.running_broker import ids


async def test_the_next_message_waits_for_the_one_before(lite: LiteBroker) -> None:
    await lite.sync("a", "b")
    a1, a2, b1 = await lite.send_lite("a", "a", "b")
    held = await lite.receive(1)
    assert ids(held) == [a1]
    assert await lite.got() == [b1]
    assert await lite.ack(*held) == [None]
    assert await lite.got() == [a2]


async def test_messages_that_are_sent_while_one_is_held_come_after_it(lite: LiteBroker) -> None:
    await lite.sync("a")
    await lite.send_lite("a")
    held = await lite.receive()
    later = await lite.send_lite("a", "a")
    assert await lite.got() == []
    poll = await lite.poll()
    await lite.ack(*held)
    assert ids(await poll) == later


async def test_a_hold_that_ends_comes_again_in_order(lite: LiteBroker) -> None:
    await lite.sync("a")
    sent = await lite.send_lite("a", "a")
    assert await lite.got() == sent
    await lite.advance(30_001)
    again = await lite.receive()
    assert ids(again) == sent
    assert [each.attempt for each in again] == [2, 2]


async def test_a_suspended_lite_topic_waits_and_the_attempt_does_not_count(lite: LiteBroker) -> None:
    await lite.sync("a", "b")
    await lite.send_lite("a", "a")
    for push in (False, True):
        (held,) = await lite.receive(1, push=push)
        assert held.attempt == 1
        handle = await lite.broker.change_invisible(GROUP, TOPIC, held.receipt_handle, 5_000, suspend=True)
        assert handle != held.receipt_handle
        assert await lite.got() == []
        await lite.advance(5_001)
    assert [each.attempt for each in await lite.receive(1)] == [1]


async def test_a_dead_letter_unblocks_its_lite_topic_and_is_named(lite: LiteBroker) -> None:
    await lite.sync("a")
    first, second = await lite.send_lite("a", "a")
    (held,) = await lite.receive(1)
    await lite.broker.forward_to_dead_letter_queue(GROUP, TOPIC, held.receipt_handle)
    assert await lite.got() == [second]
    assert (await lite.states())[first] == State.DLQ
    (row,) = await lite.query("SELECT lite_topic, message_group, message_type FROM dead_letters")
    assert (row.lite_topic, row.message_group, row.message_type) == ("a", None, "LITE")


async def test_many_lite_topics_share_an_answer(lite: LiteBroker) -> None:
    names = [f"t{number}" for number in range(40)]
    await lite.sync(*names)
    sent = await lite.send_lite(*names, *names)
    held = await lite.receive(32)
    assert len(held) == 32
    assert len(set(lite_topics_of(held))) > 16, "several of some, and one of each of the others"
    assert await lite.ack(*held) == [None] * 32
    got = ids(held)
    while more := await lite.take():
        got += more
    assert sorted(got) == sorted(sent)


async def test_a_subscription_may_say_where_it_begins(lite: LiteBroker) -> None:
    await lite.sync("a")
    sent = await lite.send_lite("a", "a", "a")
    assert await lite.take() == sent
    for option, expected in [
        (OffsetOption(OffsetPolicy.LAST), []),
        (OffsetOption(OffsetPolicy.MIN), sent),
        (OffsetOption(OffsetPolicy.TAIL, 2), sent[1:]),
        (OffsetOption(OffsetPolicy.TIMESTAMP, 0), sent),
        (OffsetOption(OffsetPolicy.TIMESTAMP, 2**50), []),
        (OffsetOption(OffsetPolicy.OFFSET, 2), sent[2:]),
    ]:
        client = f"c-{option}"
        await lite.sync("a", client_id=client, offset=option)
        assert await lite.take(client) == expected, option


async def test_a_subscription_may_begin_after_what_nobody_has_read(lite: LiteBroker) -> None:
    await lite.sync("b")
    await lite.send_lite("a", "a")
    await lite.sync("a", offset=OffsetOption(OffsetPolicy.MAX))
    await lite.broker.engine.reader.read(check_integrity)
    assert await lite.got() == []
    later = await lite.send_lite("a")
    assert await lite.take() == later
    assert set((await lite.states()).values()) == {State.COMMIT}


async def test_a_lite_topic_may_stand_beyond_what_the_group_has_read(lite: LiteBroker) -> None:
    await lite.sync("b")
    await lite.send_lite("a", "a")
    await lite.sync("a", offset=OffsetOption(OffsetPolicy.MAX))
    (row,) = await lite.query("SELECT next_offset FROM message_group_progress")
    assert row.next_offset == 2, "the database is checked at the end of the test, as by popmq db check"


async def test_an_offset_leads_to_no_message_of_an_expired_lite_topic(lite: LiteBroker) -> None:
    await lite.broker.catalog.update_topic(TOPIC, lite_expires_ms=60_000)
    await lite.send_lite("a", "a")
    await lite.advance(180_000)
    options = [
        OffsetOption(OffsetPolicy.MIN),
        OffsetOption(OffsetPolicy.OFFSET, 0),
        OffsetOption(OffsetPolicy.TAIL, 9),
        OffsetOption(OffsetPolicy.TIMESTAMP, 0),
    ]
    for option in options:
        await lite.sync("a", client_id=f"c-{option}", offset=option)
        assert await lite.take(f"c-{option}") == [], option
    later = await lite.send_lite("a")
    assert await lite.take(f"c-{options[0]}") == later
    for option in options:
        await lite.sync("a", client_id=f"d-{option}", offset=option)
        assert await lite.take(f"d-{option}") == later, option
