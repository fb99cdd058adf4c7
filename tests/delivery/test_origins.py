"""The topics behind a copy: where its message was before, and whether that is known."""

from __future__ import annotations

import json

import pytest

from popserver.catalog import topics
from popserver.delivery.origins import topics_behind
from popserver.model.group import Group
from popserver.model.names import Resource, dead_letter_topic, is_system_derived
from popserver.model.topic import Topic, message_key
from tests.support.open_store import HOUR, OpenStore
from tests.support.send_back import hand_back, pull_group, retries_of

pytestmark = pytest.mark.timeout(14)  # what follows a letter to itself has no end

NAMES = [Resource("eu", "orders"), Resource("us", "orders")]
LINEAGE = {"RETRY_TOPIC": "orders", "RECONSUME_TIME": "1", "popmq.origin-key": "7", "popmq.parent-resets": "0"}


@pytest.fixture
def group(store: OpenStore) -> Group:
    return pull_group(store, Resource("eu", "billing"))


def key_of(topic: Topic, offset: int = 0) -> int:
    return message_key(topic.queues[0].queue_id, offset)


def a_retry(store: OpenStore, group: Group, topic: Topic) -> int:
    """Let a message fail once. Returns the key of its copy."""
    store.send(topic, 2)
    assert hand_back(store, group, topic, delay_level=1) is False
    store.end_due(after_ms=HOUR)
    return key_of(retries_of(store, group))


def a_letter(store: OpenStore, group: Group, topic: Topic, offset: int = 1) -> int:
    """Let a message die. Returns the key of its copy."""
    if not is_system_derived(topic.name.name):
        store.send(topic, 2)
    assert hand_back(store, group, topic, offset, delay_level=-1) is True
    key: int = store.one_value("SELECT MAX(message_key) FROM message WHERE copy_of IS NOT NULL")
    return key


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_has_one_topic_behind_it(store: OpenStore, group: Group, name: Resource) -> None:
    for other in NAMES:
        store.topic(other.name if other is name else "another")
    topic = store.topic(name)
    assert topics_behind(store.conn, [a_retry(store, group, topic)]) == {name}
    assert topics_behind(store.conn, [a_letter(store, group, topic)]) == {name}


def test_a_copy_of_a_copy_has_all_topics_behind_it(store: OpenStore, group: Group) -> None:
    topic, other = store.topic(NAMES[0]), pull_group(store, "audit")
    a_letter(store, group, topic)
    copies = topics.find_topic(store.conn, dead_letter_topic(group.name))
    assert copies is not None
    key = a_letter(store, other, copies, 0)
    assert topics_behind(store.conn, [key]) == {copies.name, topic.name}
    store.conn.exec_driver_sql(f"UPDATE dead_letter SET origin_key = {key} WHERE copy_key = {key}")
    assert topics_behind(store.conn, [key]) == {copies.name}, "an imported one is its own origin"


def test_a_message_in_its_first_topic_has_none(store: OpenStore) -> None:
    topic = store.topic()
    store.send(topic)
    assert topics_behind(store.conn, [key_of(topic)]) == set()
    assert topics_behind(store.conn, [key_of(topic), key_of(topic, 9)]) == {None}, "the second one is not stored"
    assert topics_behind(store.conn, []) == set()


def test_a_copy_of_a_removed_message_names_its_topic(store: OpenStore, group: Group) -> None:
    topic = store.topic(NAMES[0])
    keys = [a_retry(store, group, topic), a_letter(store, group, topic)]
    store.conn.exec_driver_sql(f"DELETE FROM message WHERE topic_id = {topic.topic_id}")
    for key in keys:
        assert topics_behind(store.conn, [key]) == {topic.name}


def test_a_retry_names_its_topic_when_that_is_deleted(store: OpenStore, group: Group) -> None:
    topic = store.topic(NAMES[0])
    key = a_retry(store, group, topic)
    for table in ("message", "queue", "topic"):
        store.conn.exec_driver_sql(f"DELETE FROM {table} WHERE topic_id = {topic.topic_id}")
    assert topics_behind(store.conn, [key]) == {topic.name}


@pytest.mark.parametrize("properties", [{}, {"a": "b"}, LINEAGE | {"RECONSUME_TIME": "often"}])
def test_behind_a_retry_that_does_not_say_so_it_is_unknown(
    store: OpenStore, group: Group, properties: dict[str, str]
) -> None:
    """Such messages are imported."""
    key = a_retry(store, group, store.topic())
    assert json.loads(store.one_value("SELECT properties FROM message WHERE message_key = :key", key=key))
    text = f"'{json.dumps(properties)}'" if properties else "NULL"
    store.conn.exec_driver_sql(f"UPDATE message SET properties = {text} WHERE message_key = {key}")
    assert topics_behind(store.conn, [key]) == {None}


def test_behind_a_dead_letter_without_facts_it_is_unknown(store: OpenStore, group: Group) -> None:
    key = a_letter(store, group, store.topic())
    store.conn.exec_driver_sql("DELETE FROM dead_letter")
    assert topics_behind(store.conn, [key]) == {None}
