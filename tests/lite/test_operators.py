"""What operators do with lite topics: redrive, pause, reset, skip, unsubscribe; and their lag."""

from __future__ import annotations

import pytest

from popserver.dead_letters.rules import LetterSelection
from popserver.lite.flow import LiteAction
from popserver.model.group import LiteModel
from popserver.model.states import State
from popserver.progress.rules import Since
from tests.support.builders import GROUP, TOPIC
from tests.support.lite_broker import LiteBroker
from tests.support.running_broker import ids


@pytest.mark.parametrize("model", [LiteModel.SHARED, LiteModel.EXCLUSIVE])
async def test_a_redriven_message_goes_to_the_client_of_its_lite_topic(lite: LiteBroker, model: LiteModel) -> None:
    await lite.exclusive(model=model)
    await lite.sync("a", client_id="one")
    await lite.sync("b", client_id="two")
    sent = await lite.send_lite("a", "b", "a")
    for held in [*await lite.receive(client_id="one"), *await lite.receive(client_id="two")]:
        await lite.broker.forward_to_dead_letter_queue(GROUP, TOPIC, held.receipt_handle)
    redrives, poll = lite.broker.redrives(), await lite.poll(client_id="two")
    await redrives.plan("p1", LetterSelection(GROUP), "", None, "")
    await redrives.run("p1", 100)
    assert ids(await poll) == sent[1:2]
    assert await lite.ack(*await poll) == [None]
    assert [*await lite.take("one"), *await lite.take("one")] == [sent[0], sent[2]]
    assert set((await lite.states()).values()) == {State.COMMIT}


async def test_a_lite_topic_that_is_paused_waits_whoever_subscribes(lite: LiteBroker) -> None:
    await lite.sync("a", client_id="one")
    await lite.send_lite("a")
    await lite.take("one")
    await lite.broker.progress().pause(GROUP, TOPIC, "a", paused_by="ada")
    sent = await lite.send_lite("a", "a")
    assert await lite.got("one") == []
    await lite.sync("a", client_id="one", action=LiteAction.PARTIAL_REMOVE)
    await lite.sync("a", client_id="two")
    poll = await lite.poll(client_id="two")
    await lite.broker.progress().resume(GROUP, TOPIC, "a")
    assert ids(await poll) == sent


async def test_a_reset_gives_each_client_its_lite_topics_again(lite: LiteBroker) -> None:
    await lite.sync("a", client_id="one")
    await lite.sync("b", client_id="two")
    sent = await lite.send_lite("a", "b", "a", "c")
    assert await lite.got("one", batch_size=1) == sent[:1]
    assert await lite.take("two") == sent[1:2]
    await lite.broker.progress().reset(GROUP, TOPIC, None, Since(1), dry_run=False)
    assert await lite.take("one") == [sent[0], sent[2]]
    await lite.sync("c", client_id="two")
    assert sorted(await lite.take("two")) == sorted([sent[1], sent[3]])


async def test_a_group_that_an_operator_removed_begins_again(lite: LiteBroker) -> None:
    await lite.sync("a")
    sent = await lite.send_lite("a", "b", "a")
    assert await lite.got(batch_size=1) == sent[:1]
    await lite.broker.progress().unsubscribe(GROUP, TOPIC)
    await lite.broker.settle()
    assert await lite.take() == [sent[0], sent[2]]
    await lite.sync("b")
    assert await lite.take() == sent[1:2]


async def test_a_lite_topic_with_the_longest_name_is_paused(lite: LiteBroker) -> None:
    longest = "x" * 64
    await lite.sync(longest, "b")
    sent = await lite.send_lite(longest, "b", longest)
    progress = lite.broker.progress()
    await progress.pause(GROUP, TOPIC, longest, paused_by="ops")
    assert await lite.take() == sent[1:2]
    assert await lite.got() == []
    poll = await lite.poll()
    await progress.resume(GROUP, TOPIC, longest)
    assert ids(await poll) == [sent[0], sent[2]]


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
