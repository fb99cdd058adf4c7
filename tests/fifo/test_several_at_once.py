"""Several message groups that change in one transaction, and who is woken by it."""

from __future__ import annotations

from popserver.lite import subscriptions
from popserver.model.group import Group, HistoryLevel, LiteModel
from popserver.model.message import Delivery
from popserver.model.states import State
from popserver.model.topic import MessageType, Topic
from tests.support.builders import in_order
from tests.support.lite_broker import lite_messages
from tests.support.open_store import OpenStore, receipt_of
from tests.support.progress import skip, states_by_offset


def two_of_each(store: OpenStore, group: Group, topic: Topic, *names: str) -> list[list[Delivery]]:
    """Two held messages of each of these message groups."""
    store.send(topic, [each for name in names for each in in_order(name, 2, topic.name)])
    held = store.receive(group, topic)
    return [[each for each in held if each.stored.message.message_group == name] for name in names]


def test_acks_of_several_message_groups_count_together(store: OpenStore, topic: Topic) -> None:
    group = store.group(meets=[topic], history=HistoryLevel.ALL)
    a, b = two_of_each(store, group, topic, "a", "b")
    received = len(store.history(group))
    assert store.ack(group, a[1], b[1]) == [None, None]
    assert states_by_offset(store, group, topic) == "IRIR", "they are acked before their turn"
    assert store.ack(group, a[0], b[0]) == [None, None]
    assert states_by_offset(store, group, topic) == "CCCC"
    assert sorted(store.history(group)[received:]) == [
        *2 * [("ACK", "INFLIGHT", "COMMIT", 1)],
        *2 * [("PROVISIONAL_ACK", "INFLIGHT", "READY", 1)],
        *2 * [("SETTLE", "READY", "COMMIT", 1)],
    ]
    assert store.one_value("SELECT COUNT(*) FROM delivery") == 0


def test_acks_by_sql_of_several_message_groups_count_together(store: OpenStore, group: Group, topic: Topic) -> None:
    """Those behind a held message before their turn, the others at once."""
    a, b, c = two_of_each(store, group, topic, "a", "b", "c")
    for each in (a[1], b[0], b[1], c[1]):
        store.conn.exec_driver_sql(
            f"UPDATE delivery SET visible_at_ms = 0, state = '{State.ACKED_IN_TRANSACTION}'"
            f" WHERE message_key = {receipt_of(each).message_key}"
        )
    store.end_due()
    found = dict(store.rows("SELECT message_key, state FROM delivery"))
    assert {receipt_of(each).message_key: found.get(receipt_of(each).message_key) for each in (*a, *b, *c)} == {
        receipt_of(a[0]).message_key: State.INFLIGHT,
        receipt_of(a[1]).message_key: State.ACKED_PROVISIONALLY,
        receipt_of(b[0]).message_key: None,
        receipt_of(b[1]).message_key: None,
        receipt_of(c[0]).message_key: State.INFLIGHT,
        receipt_of(c[1]).message_key: State.ACKED_PROVISIONALLY,
    }


def test_a_message_group_that_is_done_has_no_position(store: OpenStore, group: Group, topic: Topic) -> None:
    """A position is for messages behind the scan."""
    [[head, second]] = two_of_each(store, group, topic, "a")
    store.ack(group, second)
    store.ack(group, head)
    assert store.rows("SELECT * FROM message_group_progress") == []


def test_a_skip_of_the_last_one_leaves_its_message_group_open(store: OpenStore, group: Group, topic: Topic) -> None:
    store.send(topic, in_order("a", 1, topic.name))
    store.change(group, store.receive(group, topic)[0], 0, give_back=True)
    assert skip(store, group, topic, 0).is_done
    store.send(topic, in_order("a", 1, topic.name))
    assert len(store.receive(group, topic)) == 1


def test_a_skip_closes_only_the_message_group_whose_next_one_is_held(store: OpenStore, topic: Topic) -> None:
    """The next one of the other is free."""
    one, other = store.group(meets=[topic]), store.group("other", meets=[topic])
    store.send(topic, in_order("a", 4, topic.name))
    for group in (one, other):
        head, second = store.receive(group, topic, 2)
        store.change(group, head, 0, give_back=True)
        if group is other:
            store.change(group, second, 0, give_back=True)
    assert skip(store, one, topic, 0).is_done
    since = dict(store.rows("SELECT group_id, open_since_ms FROM message_group_progress"))
    assert since == {one.group_id: None, other.group_id: store.now_ms}
    assert store.receive(one, topic) == []
    assert len(store.receive(other, topic)) == 2


def test_the_end_of_a_message_wakes_polls_of_its_topic(store: OpenStore, group: Group, topic: Topic) -> None:
    store.send(topic, in_order("a", 3, topic.name))
    (first,) = store.receive(group, topic, 1)
    assert store.receive(group, topic) == []
    store.ack(group, first)
    assert store.rings == {topic.topic_id}, "others are behind the scan"
    (second,) = store.receive(group, topic, 1)
    store.change(group, second, 0, give_back=True)
    assert store.rings == {topic.topic_id}, "it is ready again"


def test_the_end_of_a_message_wakes_the_clients_of_its_lite_topic_alone(store: OpenStore) -> None:
    topic = store.topic("letters", accepts=(MessageType.LITE,))
    group = store.group("readers", lite=LiteModel.SHARED, meets=[topic])
    store.one(subscriptions.sync, subscriptions.SyncLite(group, topic, "c1", {"a", "b"}, is_complete=True))
    store.send(topic, [each for name in "ab" for each in lite_messages(name, 2, topic.name)])
    held = [store.receive(group, topic, 1, overlaps=True) for _ in range(2)]
    [[first], [second]] = sorted(held, key=lambda each: each[0].stored.message.message_group or "")
    store.ack(group, first)
    assert (store.rings, store.lite_rings) == (set(), {topic.topic_id: {"a"}})
    store.change(group, second, 0, give_back=True)
    assert (store.rings, store.lite_rings) == (set(), {topic.topic_id: {"b"}})
