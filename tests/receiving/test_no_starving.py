"""No source of messages starves another one, however small the batches are, and whoever receives in between."""

from __future__ import annotations

from dataclasses import replace

import pytest

from popserver.model.names import Resource
from popserver.model.topic import MessageType
from popserver.receiving.receive import receive_batch_of
from tests.support.builders import GROUP, a_message, in_order
from tests.support.open_store import SECOND, OpenStore, a_receive
from tests.support.running_broker import RunningBroker

MANY = 60
BOTH = (MessageType.NORMAL, MessageType.FIFO)


@pytest.mark.parametrize("new_waits", [True, False], ids=["new ones wait", "no new ones"])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 4])
def test_a_failed_message_comes_beside_open_message_groups(
    store: OpenStore, batch_size: int, *, new_waits: bool
) -> None:
    topic = store.topic(accepts=BOTH)
    group = store.group(meets=[topic])
    failed = a_message()
    store.send(topic, [failed])
    store.receive(group, topic, invisible_ms=SECOND)
    # Ten message groups, each with more messages behind its first one, which is acked: the groups are open.
    store.send(topic, [message for number in range(10) for message in in_order(f"g{number}", MANY)])
    heads = store.receive(group, topic, 128, heads_only=True)
    store.ack(group, *heads)
    if new_waits:
        store.send(topic, [a_message() for _ in range(MANY)])
    store.now_ms += 2 * SECOND
    store.end_due()
    for rotation in range(20):
        got = store.receive(group, topic, batch_size, rotation=rotation)
        assert got
        if failed.message_id in [each.stored.message.message_id for each in got]:
            return
        store.ack(group, *got)
    pytest.fail(f"20 receives of {batch_size} went by, and the message that is READY again was in none")


async def test_two_groups_in_turn_get_new_messages_beside_failed_ones(either_broker: RunningBroker) -> None:
    """Receives of one message alternate between old and new. Another group's receives do not take its turns."""
    running, other = either_broker, Resource("", "other")
    await running.topic()
    for name in (GROUP, other):
        await running.group(name)
        assert await running.receive(group=name) == []
    await running.send(MANY)
    for name in (GROUP, other):
        await running.receive(128, group=name, invisible_ms=10 * SECOND)
    await running.advance(11 * SECOND)
    new = await running.send(1)
    fresh = {each.message_id for each in new}
    met = dict.fromkeys((GROUP, other), 0)
    for _ in range(20):
        for name in met:
            (got,) = await running.receive(1, group=name)
            met[name] += got.stored.message.message_id in fresh
    assert set(met.values()) == {1}


def test_searches_for_eight_consumers_begin_at_each_of_eight_queues(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    searches = [[a_receive(group, topic, rotation=8 * search + each) for each in range(8)] for search in range(8)]
    assert [receive_batch_of(each).rotation % 8 for each in searches] == list(range(8))
    again = [replace(each, searches=1) for each in searches[0]]
    assert receive_batch_of(again).rotation == 1, "if a search found nothing and there is more, the next queue is first"
