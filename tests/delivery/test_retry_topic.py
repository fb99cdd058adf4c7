"""Retry messages: copies in the group's own topic, which say where they come from and how often they failed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from popserver.delivery import retry_topic
from popserver.delivery.retry_topic import RetryMessage, RetryOrigin, marked, retry_origin_of, unmarked
from popserver.model.group import Group
from popserver.model.names import Resource
from popserver.model.topic import Topic, message_key
from tests.support.builders import a_message
from tests.support.open_store import HOUR, SECOND, OpenStore
from tests.support.send_back import commit, hand_back, pull_group, reset, retries, retries_of

OWN = {"colour": "red", "größe": "ß"}
ORIGIN = RetryOrigin("orders", 3, 77, 2)
MARKS = {"RETRY_TOPIC": "orders", "RECONSUME_TIME": "3", "popmq.origin-key": "77", "popmq.parent-resets": "2"}


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    store.topic("another")
    made = store.topic()
    store.send(made, [a_message(made.name, properties={**OWN, "n": str(number)}, tag="A") for number in range(4)])
    return made


@pytest.fixture
def group(store: OpenStore) -> Group:
    return pull_group(store)


def key_of(topic: Topic, offset: int) -> int:
    return message_key(topic.queues[0].queue_id, offset)


def failed(store: OpenStore, group: Group, topic: Topic, *offsets: int) -> None:
    """Each of these messages fails, one after the other, and comes again."""
    for offset in offsets:
        assert hand_back(store, group, topic, offset, delay_level=1) is False
        store.now_ms += 1
    store.end_due(after_ms=HOUR)


def stored(store: OpenStore, topic: Topic) -> list[Any]:
    columns = "message_key, copy_of, message_group, tag, properties, stored_at_ms"
    return store.rows(f"SELECT {columns} FROM message WHERE topic_id = :id ORDER BY message_key", id=topic.topic_id)


def test_the_lineage_of_a_copy() -> None:
    assert marked(OWN, ORIGIN) == {**OWN, **MARKS}
    assert unmarked({**OWN, **MARKS}) == OWN
    assert retry_origin_of({**OWN, **MARKS}) == ORIGIN
    assert marked({**OWN, **MARKS}, ORIGIN._replace(failures=4))["RECONSUME_TIME"] == "4"
    for missing in MARKS:
        with pytest.raises(KeyError):
            retry_origin_of({name: value for name, value in MARKS.items() if name != missing})


def test_properties_as_they_are_stored() -> None:
    assert retry_topic.properties_of(None) == retry_topic.properties_of("") == {}
    assert retry_topic.properties_of('{"a": "b"}') == {"a": "b"}
    assert retry_topic.as_stored({}) is None
    assert retry_topic.as_stored(["ß"]) == '["ß"]'
    assert json.loads(retry_topic.without_lineage(json.dumps({**OWN, **MARKS})) or "") == OWN
    assert retry_topic.without_lineage(json.dumps(MARKS)) is None
    assert retry_topic.without_lineage(None) is None


def test_copies_stand_in_the_order_in_which_they_are_due(store: OpenStore, topic: Topic, group: Group) -> None:
    failed(store, group, topic, 2, 0, 3)
    own = retries_of(store, group)
    rows = stored(store, own)
    assert [row.message_key for row in rows] == [key_of(own, offset) for offset in range(3)]
    assert [row.copy_of for row in rows] == [key_of(topic, offset) for offset in (2, 0, 3)]
    assert [(row.message_group, row.tag, row.stored_at_ms) for row in rows] == [(None, "A", store.now_ms)] * 3
    for row, offset in zip(rows, (2, 0, 3), strict=True):
        properties = json.loads(row.properties)
        assert retry_origin_of(properties) == RetryOrigin("orders", 1, key_of(topic, offset), 0)
        assert unmarked(properties) == {**OWN, "n": str(offset)}


def test_messages_that_are_due_together_stand_in_the_order_of_their_keys(
    store: OpenStore, topic: Topic, group: Group
) -> None:
    for offset in (3, 1, 2):
        hand_back(store, group, topic, offset, delay_level=1)
    store.end_due(after_ms=HOUR)
    assert [row.copy_of for row in stored(store, retries_of(store, group))] == [key_of(topic, at) for at in (1, 2, 3)]


def test_each_group_has_its_own_copies(store: OpenStore, topic: Topic, group: Group) -> None:
    other = pull_group(store, Resource("eu", "other"))
    for each, offset in ((other, 0), (group, 1), (other, 2)):
        hand_back(store, each, topic, offset, delay_level=1)
    store.end_due(after_ms=HOUR)
    for each, offsets in ((group, [1]), (other, [0, 2])):
        own = retries_of(store, each)
        assert own.name == Resource(each.name.namespace, f"%RETRY%{each.name.name}")
        assert [row.copy_of for row in stored(store, own)] == [key_of(topic, offset) for offset in offsets]
        assert own.topic_id in store.rung
    steps = store.rows("SELECT group_id, event, attempt FROM history WHERE event = 'BACKOFF_ELAPSED' ORDER BY group_id")
    assert sorted(steps) == sorted(
        [(group.group_id, "BACKOFF_ELAPSED", 1), *[(other.group_id, "BACKOFF_ELAPSED", 1)] * 2]
    )


def test_a_copy_of_a_copy_names_the_first_message(store: OpenStore, topic: Topic, group: Group) -> None:
    failed(store, group, topic, 1)
    own = retries_of(store, group)
    failed(store, group, own, 0)
    _, again = stored(store, own)
    assert again.copy_of == key_of(own, 0)
    assert retry_origin_of(json.loads(again.properties)) == RetryOrigin("orders", 2, key_of(topic, 1), 0)
    assert unmarked(json.loads(again.properties)) == {**OWN, "n": "1"}


def test_it_says_how_often_an_operator_had_moved_the_group(store: OpenStore, topic: Topic) -> None:
    before, group, after = (pull_group(store, name) for name in ("a", "b", "c"))
    for other in (before, after):
        for _ in range(3):
            reset(store, other, topic, 0)
    for count in (1, 2):
        reset(store, group, topic, 0)
        failed(store, group, topic, 3 - count)
        (newest,) = stored(store, retries_of(store, group))[-1:]
        assert retry_origin_of(json.loads(newest.properties)).resets == count
    reset(store, group, retries_of(store, group), 0)
    failed(store, group, retries_of(store, group), 1)
    (newest,) = stored(store, retries_of(store, group))[-1:]
    assert retry_origin_of(json.loads(newest.properties)) == RetryOrigin("orders", 2, key_of(topic, 1), 1)


class TestLookingBack:
    def test_to_the_first_key(self, store: OpenStore, topic: Topic, group: Group) -> None:
        other = pull_group(store, "other")
        assert retry_topic.first_key_of(store.conn, group, key_of(topic, 2)) == key_of(topic, 2)
        failed(store, group, topic, 2)
        own = retries_of(store, group)
        failed(store, group, own, 0)
        for offset in (0, 1):
            assert retry_topic.first_key_of(store.conn, group, key_of(own, offset)) == key_of(topic, 2)
        assert retry_topic.first_key_of(store.conn, group, key_of(topic, 2)) == key_of(topic, 2)
        assert retry_topic.first_key_of(store.conn, group, key_of(own, 9)) == key_of(own, 9)
        assert retry_topic.first_key_of(store.conn, other, key_of(own, 0)) == key_of(own, 0), "of another group"

    def test_at_the_copies_of_a_message(self, store: OpenStore, topic: Topic, group: Group) -> None:
        other = pull_group(store, "other")
        assert retry_topic.copies_of(store.conn, group, key_of(topic, 2)) == []
        failed(store, group, topic, 2)
        own = retries_of(store, group)
        failed(store, group, own, 0)
        failed(store, group, topic, 1)
        copies = [
            RetryMessage(key_of(own, at), "%RETRY%billing", RetryOrigin("orders", at + 1, key_of(topic, 2), 0))
            for at in (0, 1)
        ]
        assert retry_topic.copies_of(store.conn, group, key_of(topic, 2)) == copies
        assert retry_topic.copies_of(store.conn, group, key_of(own, 0)) == copies[1:], "those after it"
        assert retry_topic.copies_of(store.conn, group, key_of(own, 1)) == []
        assert [each.message_key for each in retry_topic.copies_of(store.conn, group, key_of(topic, 1))] == [
            key_of(own, 2)
        ]
        assert retry_topic.copies_of(store.conn, other, key_of(topic, 2)) == []
        assert retry_topic.copies_of(store.conn, group, key_of(topic, 3)) == []

    def test_messages_that_were_imported_are_in_their_first_place(
        self, store: OpenStore, topic: Topic, group: Group
    ) -> None:
        failed(store, group, topic, 2)
        own = retries_of(store, group)
        store.conn.exec_driver_sql(
            f'UPDATE message SET properties = \'{{"a": "b"}}\' WHERE message_key = {key_of(own, 0)}'
        )
        assert retry_topic.first_key_of(store.conn, group, key_of(own, 0)) == key_of(own, 0)
        assert retry_topic.copies_of(store.conn, group, key_of(topic, 2)) == []


def test_what_waits_when_its_topic_is_deleted_is_not_copied(store: OpenStore, topic: Topic, group: Group) -> None:
    other = store.topic("other")
    store.send(other, 2)
    hand_back(store, group, topic, 0, delay_level=1)
    hand_back(store, group, other, 1, delay_level=1)
    store.conn.exec_driver_sql(f"UPDATE topic SET deleted_at_ms = 1 WHERE topic_id = {topic.topic_id}")
    store.end_due(after_ms=SECOND)
    assert [row.copy_of for row in stored(store, retries_of(store, group))] == [key_of(other, 1)]
    assert [each[0] for each in store.history(group)].count("BACKOFF_ELAPSED") == 1
    assert store.rows("SELECT * FROM delivery") == []


def test_a_member_pulls_them_like_other_messages(store: OpenStore, topic: Topic, group: Group) -> None:
    failed(store, group, topic, 0)
    commit(store, group, topic, 4)
    (only,) = retries(store, group)
    assert (only.offset, only.message.topic) == (0, retries_of(store, group).name)
