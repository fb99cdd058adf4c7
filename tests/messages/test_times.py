"""Times within a queue do not go back, though the moment of a transaction may be before that of one that was sooner."""

from __future__ import annotations

import pytest

from popserver.messages import seek
from popserver.model.topic import Topic
from tests.support.open_store import MINUTE, SECOND, OpenStore
from tests.support.pending_store import a_delayed, enter_due, pend
from tests.support.pulls import look
from tests.support.send_back import hand_back, pull_group, retries_of

AHEAD_MS = 20


def stored_at_ms(store: OpenStore, topic: Topic, queue: int = 0) -> list[int]:
    return [each.stored_at_ms for each in look(store, topic, queue=queue).messages]


def put_ahead(store: OpenStore, topic: Topic) -> int:
    """A transaction begun later has had the topic's first queue sooner; its time."""
    store.now_ms += AHEAD_MS
    store.send(topic)
    store.now_ms -= AHEAD_MS
    return store.now_ms + AHEAD_MS


@pytest.mark.row("I3")
def test_of_what_is_sent(store: OpenStore) -> None:
    topic = store.topic()
    store.send(topic)
    start_ms, ahead_ms = store.now_ms, put_ahead(store, topic)
    store.send(topic, 2)
    store.now_ms += SECOND
    store.send(topic)
    assert stored_at_ms(store, topic) == [start_ms, ahead_ms, ahead_ms, ahead_ms, store.now_ms]
    assert seek.offset_at(store.conn, topic, topic.queues[0], start_ms + 1) == 1


def test_each_queue_has_its_own(store: OpenStore) -> None:
    topic = store.topic(queues=2)
    ahead_ms = put_ahead(store, topic)
    store.send(topic, queue=1)
    assert [stored_at_ms(store, topic, queue) for queue in (0, 1)] == [[ahead_ms], [store.now_ms]]


def test_of_what_was_delayed(store: OpenStore) -> None:
    topic = store.topic()
    pend(store, topic, a_delayed(store))
    store.now_ms += MINUTE
    ahead_ms = put_ahead(store, topic)
    assert enter_due(store) == 1
    assert stored_at_ms(store, topic) == [ahead_ms, ahead_ms]


def test_of_dead_letters(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 2)
    sooner, later = store.receive(group, topic)
    store.now_ms += AHEAD_MS
    assert store.forward(group, sooner) is None
    store.now_ms -= AHEAD_MS
    assert store.forward(group, later) is None
    rows = store.rows("SELECT stored_at_ms FROM message WHERE copy_of IS NOT NULL ORDER BY message_key")
    assert [row.stored_at_ms for row in rows] == [store.now_ms + AHEAD_MS] * 2
    dead = store.rows("SELECT dead_at_ms FROM dead_letter ORDER BY copy_key")
    assert [row.dead_at_ms for row in dead] == [store.now_ms + AHEAD_MS, store.now_ms], "that is when they died"


def test_of_retries(store: OpenStore) -> None:
    topic = store.topic()
    group = pull_group(store)
    store.send(topic, 2)
    assert hand_back(store, group, topic, 0, 1) is False
    store.end_due(after_ms=MINUTE + AHEAD_MS)
    store.now_ms -= MINUTE + AHEAD_MS
    assert hand_back(store, group, topic, 1, 1) is False
    store.end_due(after_ms=MINUTE)
    assert stored_at_ms(store, retries_of(store, group)) == [store.now_ms + AHEAD_MS] * 2
