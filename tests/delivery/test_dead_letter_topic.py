"""INFLIGHT → DLQ: the copy anybody can read, the row of facts, and exactly one of each."""

from __future__ import annotations

from typing import Any

import pytest

from popserver.catalog import groups, topics
from popserver.maintenance import purge
from popserver.model.errors import InvalidReceiptHandle
from popserver.model.group import Group
from popserver.model.message import Message
from popserver.model.names import Resource, dead_letter_topic
from popserver.model.states import State
from popserver.model.topic import Topic
from popserver.settling import change
from tests.support.builders import a_message
from tests.support.open_store import SECOND, OpenStore, ids, receipt_of

HOLD_MS = 30 * SECOND


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    return store.topic(Resource("shop", "orders"), queues=2)


@pytest.fixture
def group(store: OpenStore, topic: Topic) -> Group:
    return store.group(Resource("shop", "billing"), meets=[topic], max_attempts=1)


@pytest.fixture
def dead(store: OpenStore, topic: Topic, group: Group) -> Message:
    """A message with everything on it, dead in the group."""
    sent = a_message(
        topic.name, tag="A", keys=("k1", "k2"), properties={"origin": "JFK"}, born_at_ms=5, body=b"the body"
    )
    store.send(topic, [sent], queue=1)
    store.receive(group, topic, invisible_ms=HOLD_MS)
    assert store.end_due(after_ms=HOLD_MS) == 1
    return sent


def dead_letter_topic_of(store: OpenStore, group: Group) -> Topic:
    found = topics.find_topic(store.conn, dead_letter_topic(group.name))
    assert found is not None
    return found


def facts(store: OpenStore) -> list[Any]:
    return store.rows("SELECT * FROM dead_letters ORDER BY id")


@pytest.mark.row("L12")
def test_another_group_reads_the_copy_like_any_message(
    store: OpenStore, topic: Topic, group: Group, dead: Message
) -> None:
    place = dead_letter_topic_of(store, group)
    assert (place.name, len(place.queues)) == (Resource("shop", "%DLQ%billing"), 1)
    reader = store.group("reader", meets=[place])
    ((stored, handle, attempt, _),) = granted = store.receive(reader, place)
    assert stored.message == dead._replace(topic=place.name)
    assert stored.dead_letter_of == ("orders", dead.message_id)
    assert (attempt, stored.offset, stored.stored_at_ms) == (1, 0, store.now_ms)
    assert handle
    assert store.ack(reader, granted[0]) == [None]


def test_the_view_shows_the_facts_and_the_message(store: OpenStore, topic: Topic, group: Group, dead: Message) -> None:
    (row,) = facts(store)
    assert (row.group_namespace, row.consumer_group, row.topic_namespace, row.topic) == (
        "shop",
        "billing",
        "shop",
        "orders",
    )
    assert (row.queue_id, row.queue_offset, row.delivery_attempt, row.dead_at_ms) == (1, 0, 1, store.now_ms)
    assert (row.tag, row.keys, row.properties) == ("A", '["k1", "k2"]', '{"origin": "JFK"}')
    assert (bytes(row.body), row.born_at_ms, row.redrive_state) == (b"the body", 5, None)
    assert row.reason == "the hold's time ended, and no attempt remains"
    assert store.rings == {dead_letter_topic_of(store, group).topic_id}
    assert (store.lag(group).dead_letters, store.lag(group).inflight) == (1, 0)


def test_the_origin_is_dead_for_that_group_alone(store: OpenStore, topic: Topic, group: Group, dead: Message) -> None:
    other = store.group("other", meets=[topic])
    assert store.state(group, dead.message_id) is State.DLQ
    assert store.state(other, dead.message_id) is State.READY
    assert store.receive(group, topic) == []
    assert ids(store.receive(other, topic)) == [dead.message_id]


def test_each_group_has_its_own(store: OpenStore, topic: Topic, group: Group, dead: Message) -> None:
    other = store.group("other", meets=[topic], max_attempts=1)
    store.receive(other, topic, invisible_ms=HOLD_MS)
    store.end_due(after_ms=HOLD_MS)
    assert [row.consumer_group for row in facts(store)] == ["billing", "other"]
    assert len({row.copy_key for row in facts(store)}) == 2


class TestForwarding:
    def test_gives_a_message_up(self, store: OpenStore, topic: Topic, group: Group) -> None:
        store.send(topic)
        (held,) = store.receive(group, topic)
        assert store.forward(group, held) is None
        (row,) = facts(store)
        assert (row.reason, row.delivery_attempt) == ("forwarded by its consumer", 1)

    def test_repeated_it_is_done_already(self, store: OpenStore, topic: Topic, group: Group) -> None:
        store.send(topic)
        (held,) = store.receive(group, topic)
        wishes = [change.Forward(group, receipt_of(held))] * 2
        assert list(store.do(change.forward, *wishes)) == [None, None]
        before = store.digest()
        assert store.forward(group, held) is None
        assert store.digest() == before
        assert len(facts(store)) == 1

    def test_of_a_committed_message_changes_nothing(self, store: OpenStore, topic: Topic, group: Group) -> None:
        store.send(topic)
        (held,) = store.receive(group, topic)
        store.ack(group, held)
        assert store.forward(group, held) is None
        assert facts(store) == []

    def test_of_an_expired_hold_is_refused(self, store: OpenStore, topic: Topic, group: Group) -> None:
        store.send(topic)
        (held,) = store.receive(group, topic, invisible_ms=HOLD_MS)
        store.now_ms += HOLD_MS
        assert isinstance(store.forward(group, held), InvalidReceiptHandle)
        assert facts(store) == []


def test_many_die_in_one_step_in_order(store: OpenStore, topic: Topic, group: Group) -> None:
    sent = store.send(topic, 50)
    store.receive(group, topic, 50, invisible_ms=HOLD_MS)
    assert store.end_due(after_ms=HOLD_MS) == 50
    place = dead_letter_topic_of(store, group)
    reader = store.group("reader", meets=[place])
    assert ids(store.receive(reader, place, 50)) == [each.message_id for each in sent]
    assert len(facts(store)) == 50


def test_a_dead_letters_reader_may_fail_too(store: OpenStore, topic: Topic, group: Group, dead: Message) -> None:
    place = dead_letter_topic_of(store, group)
    reader = store.group("reader", meets=[place], max_attempts=1)
    store.receive(reader, place, invisible_ms=HOLD_MS)
    store.end_due(after_ms=HOLD_MS)
    second = dead_letter_topic_of(store, reader)
    last = store.group("last", meets=[second])
    ((stored, *_),) = store.receive(last, second)
    assert stored.message.body == b"the body"
    assert stored.dead_letter_of == ("%DLQ%billing", dead.message_id)


def test_the_same_id_dies_once_per_topic_it_came_from(
    store: OpenStore, group: Group, topic: Topic, dead: Message
) -> None:
    elsewhere = store.topic("elsewhere")
    store.meet(group, elsewhere)
    store.send(elsewhere, [dead._replace(topic=elsewhere.name)])
    store.receive(group, elsewhere, invisible_ms=HOLD_MS)
    store.end_due(after_ms=HOLD_MS)
    assert [row.topic for row in facts(store)] == ["orders", "elsewhere"]


def test_dead_letters_outlive_the_topic_they_came_from(
    store: OpenStore, topic: Topic, group: Group, dead: Message
) -> None:
    store.one(topics.delete_topic, topics.DeleteTopic(topic.name))
    store.purge()
    (row,) = facts(store)
    assert bytes(row.body) == b"the body"


def test_deleting_the_dead_letter_topic_deletes_the_dead_letters(
    store: OpenStore, topic: Topic, group: Group, dead: Message
) -> None:
    store.one(topics.delete_topic, topics.DeleteTopic(dead_letter_topic(group.name)))
    store.purge()
    assert facts(store) == []
    assert store.one_value("SELECT COUNT(*) FROM dead_letter") == 0
    assert store.state(group, dead.message_id) is State.COMMIT


def test_a_deleted_groups_dead_letters_go_with_it(store: OpenStore, topic: Topic, group: Group, dead: Message) -> None:
    store.one(groups.delete_group, groups.DeleteGroup(group.name))
    store.purge()
    assert facts(store) == []
    assert store.one_value("SELECT COUNT(*) FROM dead_letter") == 0
    assert topics.find_topic(store.conn, dead_letter_topic(group.name)) is None
    assert store.one_value("SELECT COUNT(*) FROM message") == 1, "the origin stays"


def test_what_dies_while_its_topic_is_being_deleted(store: OpenStore, topic: Topic, group: Group) -> None:
    """Whichever goes first, no dead letter may stand without its message."""
    store.send(topic)
    store.receive(group, topic, invisible_ms=HOLD_MS)
    store.one(topics.delete_topic, topics.DeleteTopic(topic.name))
    store.now_ms += HOLD_MS
    while store.one(purge.purge, purge.PurgeDeleted()):
        store.end_due()
        without_copy = "SELECT COUNT(*) FROM dead_letter WHERE copy_key NOT IN (SELECT message_key FROM message)"
        assert store.one_value(without_copy) == 0
