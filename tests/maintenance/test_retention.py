"""Old messages go, a prefix of each queue at a time; what somebody still needs stays."""

from __future__ import annotations

import pytest

from popserver.maintenance import retention
from popserver.model.group import HistoryLevel
from popserver.model.retry import Holder
from popserver.model.states import State
from tests.support.open_store import HOUR, MINUTE, SECOND, START_MS, OpenStore


def retain(store: OpenStore, cutoff_ms: int) -> retention.Retained:
    return store.one(retention.retain, retention.Retain(cutoff_ms))


def test_what_is_older_goes_and_its_offsets_are_not_given_again(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 3)
    store.now_ms += HOUR
    store.send(topic, 2)
    assert retain(store, START_MS) == retention.Retained(0, START_MS)
    assert retain(store, START_MS + 1).removed == 3
    assert retain(store, START_MS + 1) == retention.Retained(0, START_MS + HOUR)
    assert store.one_value("SELECT min_offset FROM queue") == 3
    assert (store.lag(group).ready, store.lag(group).stored) == (2, 2)
    assert [each.stored.offset for each in store.receive(group, topic)] == [3, 4]
    assert [each.offset for each in store.send(topic)] == [5]


def test_a_step_removes_of_several_queues_until_it_is_full(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [store.topic(name) for name in ("a", "b", "c", "d")]
    for each in topics:
        store.send(each, 3)
    monkeypatch.setattr(retention, "STEP_ROWS_MAX", 5)
    first = retain(store, START_MS + 1)
    assert [(each.topic.name, each.messages) for each in first.queues] == [("a", 3), ("b", 2)]
    monkeypatch.setattr(retention, "STEP_QUEUES_MAX", 1)
    second = retain(store, START_MS + 1)
    assert [(each.topic.name, each.messages) for each in second.queues] == [("b", 1)]
    monkeypatch.undo()
    assert retain(store, START_MS + 1).removed == 6
    assert retain(store, START_MS + 1).removed == 0


def test_an_empty_store(store: OpenStore) -> None:
    store.topic()
    assert retain(store, START_MS) == retention.Retained(0, None)


def test_what_is_held_or_waits_stays_with_what_stands_behind_it(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic], history=HistoryLevel.NONE)
    store.send(topic, 4)
    first, second = (store.receive(group, topic, 1, holder=Holder.PUSH, invisible_ms=HOUR)[0] for _ in range(2))
    store.ack(group, first)
    assert retain(store, START_MS + 1).removed == 1
    assert retain(store, START_MS + 1).removed == 0
    store.change(group, second, MINUTE)
    assert retain(store, START_MS + 1).removed == 0
    store.end_due(after_ms=MINUTE)
    assert retain(store, START_MS + 1).removed == 3, "what is ready again goes with its delivery"
    assert store.one_value("SELECT COUNT(*) FROM delivery") == 0
    assert store.receive(group, topic) == []
    assert store.lag(group).ready == 0


def test_one_groups_hold_keeps_it_for_all(store: OpenStore) -> None:
    topic = store.topic()
    done, busy = store.group("done", meets=[topic]), store.group("busy", meets=[topic])
    store.send(topic)
    store.ack(done, *store.receive(done, topic))
    (held,) = store.receive(busy, topic)
    assert retain(store, START_MS + 1).removed == 0
    store.ack(busy, held)
    assert retain(store, START_MS + 1).removed == 1


def test_dead_letters_stay(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    store.forward(group, store.receive(group, topic)[0])
    assert retain(store, START_MS + HOUR).removed == 1
    assert store.one_value("SELECT COUNT(*) FROM dead_letters") == 1


def test_history_goes_too(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic], history=HistoryLevel.ALL)
    store.send(topic)
    (held,) = store.receive(group, topic)
    store.now_ms += SECOND
    store.ack(group, held)
    while retain(store, START_MS + 1).removed:
        pass
    assert [step[0] for step in store.history(group)] == ["ACK"]


def test_a_step_takes_a_thousand(store: OpenStore) -> None:
    topic = store.topic()
    store.send(topic, 1_001)
    assert [retain(store, START_MS + 1).removed for _ in range(3)] == [1_000, 1, 0]


def test_a_group_behind_the_first_offset_starts_there(store: OpenStore) -> None:
    topic = store.topic()
    store.send(topic, 3)
    while retain(store, START_MS + 1).removed:
        pass
    group = store.group(meets=[topic])
    store.send(topic)
    assert [each.stored.offset for each in store.receive(group, topic)] == [3]
    assert set(store.states(group).values()) == {State.INFLIGHT}
