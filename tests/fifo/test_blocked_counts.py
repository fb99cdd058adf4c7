"""How many message groups are blocked."""

from __future__ import annotations

from popserver.fifo.runs import blocked_counts
from popserver.model.topic import MessageType
from tests.support.builders import in_order
from tests.support.open_store import OpenStore


def test_each_message_group_counts_once(store: OpenStore) -> None:
    topic = store.topic(accepts=(MessageType.NORMAL, MessageType.FIFO))
    group, other = store.group(meets=[topic]), store.group("other", meets=[topic])
    store.send(topic, [*in_order("a", 3), *in_order("b", 2), *in_order("c", 1)])
    held = store.receive(group, topic)
    assert len(held) == 6
    store.receive(other, topic, 2)
    assert blocked_counts(store.conn) == {group.group_id: 3, other.group_id: 1}
    store.ack(group, *[each for each in held if each.stored.message.message_group != "a"])
    assert blocked_counts(store.conn) == {group.group_id: 1, other.group_id: 1}
