"""What is told of a message that was handed back: where it waits, and what stands for it."""

from __future__ import annotations

import pytest

from popserver.administration import facts as administration_facts
from popserver.administration import message_facts
from popserver.administration.why import sentence
from popserver.catalog import topics
from popserver.model.group import Group
from popserver.model.message import Message
from popserver.model.names import Resource, retry_topic
from popserver.model.topic import Topic
from tests.support.builders import a_message
from tests.support.open_store import MINUTE, SECOND, START_MS, OpenStore
from tests.support.send_back import commit, fail_again, hand_back, pull_group, reset, retries_of


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    return store.topic()


@pytest.fixture
def group(store: OpenStore) -> Group:
    return pull_group(store, max_attempts=3)


@pytest.fixture
def sent(store: OpenStore, topic: Topic) -> Message:
    message = a_message(topic.name)
    store.send(topic, [message])
    return message


def why(store: OpenStore, group: Group, message: Message, topic: Resource | None = None) -> str:
    found, _ = message_facts.message_facts(store.conn, group.name, topic, message.message_id, store.times)
    return sentence(found, lambda at_ms: f"{(at_ms - START_MS) // SECOND} s")


def test_it_waits_though_nothing_is_committed(store: OpenStore, topic: Topic, group: Group, sent: Message) -> None:
    hand_back(store, group, topic)
    expected = "WAITING_RETRY: attempt 1 of 3 failed (handed back by its consumer); the next attempt is 10 s"
    assert why(store, group, sent) == expected
    commit(store, group, topic, 1)
    assert why(store, group, sent) == expected


def test_its_retry_stands_for_it(store: OpenStore, topic: Topic, group: Group, sent: Message) -> None:
    hand_back(store, group, topic)
    store.end_due(after_ms=MINUTE)
    its_retry = "sent back once, its retry is at offset 0 of topic '%RETRY%billing', "
    assert why(store, group, sent) == its_retry + "READY: group 'billing' has committed no offset in this queue yet"
    commit(store, group, topic, 1)
    commit(store, group, retries_of(store, group), 0)
    assert why(store, group, sent) == its_retry + "READY: the next pull of group 'billing' may take it"
    assert why(store, group, sent, retry_topic(group.name)) == "READY: the next pull of group 'billing' may take it"
    states = store.rows("SELECT topic, state FROM message_state ORDER BY message_key")
    assert [tuple(row) for row in states] == [("orders", "COMMIT"), ("%RETRY%billing", "READY")]
    commit(store, group, retries_of(store, group), 1)
    assert why(store, group, sent) == its_retry + "COMMIT: group 'billing' has committed an offset beyond it"


def test_of_several_retries_the_newest_counts(store: OpenStore, topic: Topic, group: Group, sent: Message) -> None:
    hand_back(store, group, topic)
    fail_again(store, group, delay_level=5)
    said = why(store, group, sent)
    assert said.startswith(
        "sent back once, its retry is at offset 0 of topic '%RETRY%billing', WAITING_RETRY: attempt 2"
    )
    store.end_due(after_ms=MINUTE)
    assert why(store, group, sent).startswith("sent back 2 times, its retry is at offset 1 of topic '%RETRY%billing'")
    newest = administration_facts.find_message(store.conn, retry_topic(group.name), sent.message_id)
    assert newest.stored.offset == 1
    _, steps = message_facts.message_facts(store.conn, group.name, None, sent.message_id, store.times)
    assert [(each.event, each.attempt) for each in steps] == [
        ("RETRY", 1),
        ("BACKOFF_ELAPSED", 1),
        ("RETRY", 2),
        ("BACKOFF_ELAPSED", 2),
    ]


def test_a_dead_letter_is_one_wherever_it_died(store: OpenStore, topic: Topic, group: Group, sent: Message) -> None:
    hand_back(store, group, topic)
    fail_again(store, group, delay_level=-1)
    died = "DLQ: a dead letter of group 'billing' since 10800 s, after attempt 2: forwarded by its consumer"
    assert why(store, group, sent) == died
    assert why(store, group, sent, retry_topic(group.name)) == died


def test_what_is_read_again_has_its_retries_behind_it(
    store: OpenStore, topic: Topic, group: Group, sent: Message
) -> None:
    hand_back(store, group, topic)
    store.end_due(after_ms=MINUTE)
    commit(store, group, topic, 1)
    reset(store, group, topic)
    assert why(store, group, sent) == "READY: the next pull of group 'billing' may take it"
    hand_back(store, group, topic)
    assert why(store, group, sent).startswith("WAITING_RETRY: attempt 1 of 3 failed")


def test_to_another_group_it_is_any_message(store: OpenStore, topic: Topic, group: Group, sent: Message) -> None:
    other = pull_group(store, "other")
    commit(store, other, topic, 1)
    hand_back(store, group, topic)
    store.end_due(after_ms=MINUTE)
    assert why(store, other, sent) == "COMMIT: group 'other' has committed an offset beyond it"


def test_its_retry_outlives_its_topic_and_the_dead_letter_of_another_group(
    store: OpenStore, topic: Topic, group: Group, sent: Message
) -> None:
    other = pull_group(store, "other", max_attempts=1)
    hand_back(store, other, topic)
    hand_back(store, group, topic)
    store.end_due(after_ms=MINUTE)
    store.one(topics.delete_topic, topics.DeleteTopic(topic.name))
    waits = (
        "READY for group 'billing', which has not received from this topic yet; it will start at the earliest message"
    )
    assert why(store, group, sent) == waits
    assert why(store, group, sent, retry_topic(group.name)) == waits
    assert why(store, other, sent).startswith("DLQ: a dead letter of group 'other' since")
