"""What the server copies from a message says so: of which message (`copy_of`), and why (`copy_kind`)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from popserver.model.group import Group
from popserver.model.states import CopyKind
from popserver.model.topic import MessageType, Topic
from tests.support.builders import in_order
from tests.support.open_store import SECOND, OpenStore
from tests.support.plans import Plans, whole_reads
from tests.support.redrive import die, redrive_all
from tests.support.send_back import fail_again, hand_back, pull_group, reset


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    return store.topic("flights", accepts=(MessageType.FIFO, MessageType.NORMAL))


@pytest.fixture
def group(store: OpenStore) -> Group:
    return pull_group(store, "billing", max_attempts=2)


def stored(store: OpenStore) -> list[Any]:
    """All messages, in the order in which they were stored."""
    columns = "message_key, copy_of, copy_kind, message_id, message_group"
    return store.rows(f"SELECT {columns} FROM message ORDER BY stored_at_ms, message_key")


def test_each_copy_names_the_message_it_was_made_of(store: OpenStore, topic: Topic, group: Group) -> None:
    store.send(topic, in_order("SK123", 1, topic.name))
    hand_back(store, group, topic, delay_level=1)
    assert fail_again(store, group) is True, "no attempt remains"
    assert redrive_all(store, group) == (1, 0)
    sent, retry, dead, redriven = sorted(stored(store), key=lambda each: (each.copy_of or 0, each.message_key))
    assert (sent.copy_of, sent.copy_kind) == (None, None)
    assert (retry.copy_of, retry.copy_kind) == (sent.message_key, CopyKind.RETRY)
    assert (dead.copy_of, dead.copy_kind) == (retry.message_key, CopyKind.DEAD_LETTER)
    assert (redriven.copy_of, redriven.copy_kind) == (dead.message_key, CopyKind.REDRIVEN)
    assert {bytes(each.message_id) for each in stored(store)} == {bytes(sent.message_id)}


def test_after_a_reset_a_new_retry_replaces_the_old_one(store: OpenStore, topic: Topic, group: Group) -> None:
    store.send(topic)
    for _ in range(2):
        hand_back(store, group, topic, delay_level=1)
        store.end_due(after_ms=SECOND)
        reset(store, group, topic)
    sent, old, new = stored(store)
    assert (old.copy_of, old.copy_kind) == (sent.message_key, CopyKind.REPLACED_RETRY)
    assert (new.copy_of, new.copy_kind) == (sent.message_key, CopyKind.RETRY)


def test_in_the_target_topic_of_a_plan_it_is_an_original(store: OpenStore, topic: Topic) -> None:
    group, target = store.group(meets=[topic]), store.topic("repaired")
    die(store, group, topic)
    assert redrive_all(store, group, target=target) == (1, 0)
    (copied,) = store.rows("SELECT copy_of, copy_kind FROM message WHERE topic_id = :id", id=target.topic_id)
    assert (copied.copy_of, copied.copy_kind) == (None, None)


def test_a_retry_is_found_by_its_index(store: OpenStore, topic: Topic, group: Group) -> None:
    store.send(topic)
    hand_back(store, group, topic, delay_level=1)
    store.end_due(after_ms=SECOND)
    plans = Plans(store)
    with plans.caught():
        hand_back(store, group, topic, delay_level=1)
    found = [plan for statement, plan in plans.explained().items() if "copy_kind" in statement]
    assert found
    assert all(re.search(r"message_retry_once\b", plan) and not whole_reads(plan) for plan in found), found


@pytest.mark.parametrize("values", ["copy_of = 1", "copy_kind = 'RETRY'", "copy_of = 1, copy_kind = 'OTHER'"])
def test_a_copy_without_a_known_kind_is_refused(store: OpenStore, topic: Topic, values: str) -> None:
    store.send(topic)
    with pytest.raises(IntegrityError, match="message_copy_kind"):
        store.conn.exec_driver_sql(f"UPDATE message SET {values}")
