"""A queue that another server has locked is not waited for: the message stays pending, and is asked for again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from popserver.producing import enqueue
from popserver.producing.half_messages import Decision, end_transaction
from popserver.producing.rules import Resolution
from tests.support.locked_rows import locked, queues_of
from tests.support.open_store import MINUTE, SECOND, OpenStore, open_store
from tests.support.pending_store import a_delayed, a_half, commit, decision, ids_in, pend, roll_back


@pytest.fixture
def store(postgres_url: str) -> Iterator[OpenStore]:
    with open_store(postgres_url) as opened:
        yield opened


@pytest.fixture
def other(store: OpenStore, postgres_url: str) -> Iterator[OpenStore]:
    with open_store(postgres_url) as opened:
        yield opened


def test_a_commit_is_not_made_yet_and_a_roll_back_is(store: OpenStore, other: OpenStore) -> None:
    topic = store.topic()
    first, second = pend(store, topic, a_half(), a_half())
    store.now_ms += SECOND
    with locked(other, queues_of(store, "orders")):
        assert commit(store, topic, first) is False
        assert roll_back(store, topic, second) is True
        assert ids_in(store, "pending") == [first.message_id]
    assert [*store.do(end_transaction, decision(topic, first, Resolution.COMMIT))] == [Decision(True, SECOND)]
    assert ids_in(store, "message") == [first.message_id]


def test_of_several_commits_those_that_have_a_queue_are_made(store: OpenStore, other: OpenStore) -> None:
    topic, free = store.topic(), store.topic("free")
    (first,) = pend(store, topic, a_half())
    (second,) = pend(store, free, a_half())
    with locked(other, queues_of(store, "orders")):
        asked = decision(topic, first, Resolution.COMMIT), decision(free, second, Resolution.COMMIT)
        assert [*store.do(end_transaction, *asked)] == [Decision(False), Decision(True, 0)]
        assert store.rings == {free.topic_id}


def test_a_delayed_message_is_due_again_at_once(store: OpenStore, other: OpenStore) -> None:
    topic, free = store.topic(), store.topic("free")
    (late,) = pend(store, topic, a_delayed(store, SECOND))
    (due,) = pend(store, free, a_delayed(store, SECOND))
    pend(store, topic, a_delayed(store, MINUTE))
    store.now_ms += SECOND
    with locked(other, queues_of(store, "orders")):
        done = store.one(enqueue.enqueue_due, enqueue.EnqueueDue())
        assert (done.entered, done.next_due_ms, done.next_topic_id, len(done.placed)) == (1, store.now_ms, None, 1)
        assert ids_in(store, "message") == [due.message_id]
    done = store.one(enqueue.enqueue_due, enqueue.EnqueueDue())
    assert (done.entered, done.next_topic_id) == (1, topic.topic_id)
    assert sorted(ids_in(store, "message")) == sorted([due.message_id, late.message_id])
