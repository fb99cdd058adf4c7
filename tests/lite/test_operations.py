"""What operators do with message groups, they do with lite topics."""

from __future__ import annotations

from popserver.model.states import State
from popserver.progress.rules import Edge
from tests.support.builders import GROUP, TOPIC
from tests.support.lite import LiteBroker
from tests.support.running_broker import ids

LONGEST = "x" * 64


async def test_a_lite_topic_is_paused_and_resumed(lite: LiteBroker) -> None:
    await lite.sync(LONGEST, "b")
    sent = await lite.send_lite(LONGEST, "b", LONGEST)
    progress = lite.broker.progress()
    await progress.pause(GROUP, TOPIC, LONGEST, paused_by="ops")
    assert await lite.take() == sent[1:2]
    assert await lite.got() == []
    poll = await lite.poll()
    await progress.resume(GROUP, TOPIC, LONGEST)
    assert ids(await poll) == [sent[0], sent[2]]


async def test_a_group_is_reset_to_the_beginning(lite: LiteBroker) -> None:
    await lite.sync("a", client_id="one")
    await lite.sync("b", client_id="two")
    sent = await lite.send_lite("a", "b", "a", "c")
    assert await lite.take("one") == [sent[0], sent[2]]
    assert await lite.got("two") == sent[1:2]
    await lite.broker.progress().reset(GROUP, TOPIC, None, Edge.BEGINNING, dry_run=False)
    assert await lite.take("one") == [sent[0], sent[2]]
    assert await lite.take("two") == sent[1:2]
    assert (await lite.states())[sent[3]] == State.READY


async def test_a_message_that_is_in_the_way_is_skipped(lite: LiteBroker) -> None:
    await lite.sync("a")
    first, second = await lite.send_lite("a", "a")
    assert ids(await lite.receive(1)) == [first]
    await lite.broker.progress().skip(GROUP, TOPIC, first, force=True)
    assert await lite.take() == [second]
    assert set((await lite.states()).values()) == {State.COMMIT}


async def test_lag_has_one_row_however_many_lite_topics(lite: LiteBroker) -> None:
    names = [f"t{number}" for number in range(40)]
    await lite.sync(*names[:10])
    await lite.send_lite(*names, *names)
    assert len(await lite.receive(5)) == 5
    (row,) = await lite.query("SELECT topic, ready, inflight FROM group_lag")
    assert (row.topic, row.ready, row.inflight) == ("orders", 75, 5)
