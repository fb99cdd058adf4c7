"""The history: one row per edge, as far as the group asks."""

from __future__ import annotations

import pytest

from popserver.model.group import HistoryLevel
from popserver.model.retry import Holder
from popserver.model.states import TRANSITIONS, Event, State
from tests.support.open_store import HOUR, SECOND, START_MS, OpenStore

HOLD_MS = 30 * SECOND


def live_through_every_edge(store: OpenStore, level: HistoryLevel) -> list[tuple[str, str, str, int]]:
    """Three messages, in order: acked after everything that can happen, forwarded, exhausted."""
    topic = store.topic()
    group = store.group(meets=[topic], max_attempts=3, intervals_ms=[SECOND], history=level)
    store.send(topic)
    (held,) = store.receive(group, topic, invisible_ms=HOLD_MS)
    store.change(group, held, HOLD_MS)
    store.end_due(after_ms=HOLD_MS)
    (held,) = store.receive(group, topic, holder=Holder.PUSH, invisible_ms=HOLD_MS)
    store.change(group, held, 0, give_back=True)
    (held,) = store.receive(group, topic, holder=Holder.PUSH, invisible_ms=HOLD_MS)
    store.end_due(after_ms=HOLD_MS + SECOND)
    (held,) = store.receive(group, topic, invisible_ms=HOLD_MS)
    store.ack(group, held)
    store.send(topic)
    store.forward(group, store.receive(group, topic)[0])
    store.send(topic)
    for _ in range(3):
        store.receive(group, topic, invisible_ms=HOLD_MS)
        store.end_due(after_ms=HOLD_MS)
    return store.history(group)


EVERYTHING = [
    ("RECEIVE", "READY", "INFLIGHT", 1),
    ("CHANGE_INVISIBLE", "INFLIGHT", "INFLIGHT", 1),
    ("RELEASE", "INFLIGHT", "READY", 1),
    ("RECEIVE", "READY", "INFLIGHT", 2),
    ("GIVE_BACK", "INFLIGHT", "READY", 2),
    ("RECEIVE", "READY", "INFLIGHT", 2),
    ("RETRY", "INFLIGHT", "WAITING_RETRY", 2),
    ("BACKOFF_ELAPSED", "WAITING_RETRY", "READY", 2),
    ("RECEIVE", "READY", "INFLIGHT", 3),
    ("ACK", "INFLIGHT", "COMMIT", 3),
    ("RECEIVE", "READY", "INFLIGHT", 1),
    ("FORWARD_TO_DLQ", "INFLIGHT", "DLQ", 1),
    ("RECEIVE", "READY", "INFLIGHT", 1),
    ("RELEASE", "INFLIGHT", "READY", 1),
    ("RECEIVE", "READY", "INFLIGHT", 2),
    ("RELEASE", "INFLIGHT", "READY", 2),
    ("RECEIVE", "READY", "INFLIGHT", 3),
    ("EXHAUST", "INFLIGHT", "DLQ", 3),
]


@pytest.mark.row("L3")
def test_every_edge_leaves_a_row(store: OpenStore) -> None:
    kept = live_through_every_edge(store, HistoryLevel.ALL)
    assert kept == EVERYTHING
    for event, source, end, _ in kept:
        assert TRANSITIONS[State(source), Event(event)].shown == end


def test_errors_alone(store: OpenStore) -> None:
    expected = [step for step in EVERYTHING if Event(step[0]) in HistoryLevel.ERRORS.kept]
    assert live_through_every_edge(store, HistoryLevel.ERRORS) == expected
    assert {step[0] for step in expected} == {"RELEASE", "RETRY", "FORWARD_TO_DLQ", "EXHAUST"}


def test_none(store: OpenStore) -> None:
    assert live_through_every_edge(store, HistoryLevel.NONE) == []


def test_a_row_says_when_who_and_why(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic], history=HistoryLevel.ALL)
    store.send(topic)
    store.receive(group, topic, client_id="worker-1", invisible_ms=HOLD_MS)
    store.end_due(after_ms=HOLD_MS + HOUR)
    rows = store.rows("SELECT event, at_ms, client_id, reason, message_key FROM history ORDER BY history_id")
    key = topic.queues[0].queue_id << 40
    assert rows == [
        ("RECEIVE", START_MS, "worker-1", "", key),
        ("RELEASE", START_MS + HOLD_MS + HOUR, "worker-1", "the hold's time ended", key),
    ]


def test_what_is_refused_leaves_no_row(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic], history=HistoryLevel.ALL)
    store.send(topic)
    (held,) = store.receive(group, topic)
    store.ack(group, held)
    before = store.history(group)
    store.ack(group, held)
    store.forward(group, held)
    assert store.history(group) == before
