"""What a reset writes into the history, whom it wakes and tells, and what it locks before it begins."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete, text

from popserver.database import schema
from popserver.database.notifications import RESETS, Invalidation
from popserver.model.errors import ConsumerGroupNotFound, IllegalOffset, TooManyRequests
from popserver.model.group import Group, HistoryLevel
from popserver.model.topic import Topic, offset_of, queue_of
from popserver.progress import reset as progress_reset
from popserver.progress.reset import Reset
from popserver.progress.rules import Edge, Goal, MovedOffset, Since
from tests.support.builders import in_order
from tests.support.open_store import HOUR, OpenStore
from tests.support.progress import (
    ORDERED,
    from_to,
    pull_group,
    refused_reset,
    reset,
    reset_of,
    states_by_offset,
)
from tests.support.redrive import die, redrive_all

HELD, UNREAD = ("RESET", "INFLIGHT"), ("RESET", "COMMIT")


def told(store: OpenStore, topic: Topic) -> list[tuple[int, int, str, str]]:
    """Queue, offset, event and former state of each step since the last time; in order."""
    rows = store.rows("SELECT message_key, event, from_state FROM history ORDER BY history_id")
    store.conn.execute(delete(schema.history))
    store.conn.commit()
    number_of = {queue.queue_id: queue.number for queue in topic.queues}
    return [(number_of[queue_of(key)], offset_of(key), event, state) for key, event, state in rows]


def lived_in(store: OpenStore, topic: Topic) -> Group:
    """In each queue the first message is acked, the two after it are held, and two more are unread."""
    group = store.group(meets=[topic])
    held = store.receive(group, topic)
    assert store.ack(group, *(each for each in held if not each.stored.offset)) == [None] * 2
    for number in range(2):
        store.send(topic, 2, queue=number)
    told(store, topic)
    return group


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    made = store.topic(queues=2)
    for number in range(2):
        store.send(made, 3, queue=number)
    return made


def test_back_all_between_the_offsets_and_those_that_are_held(store: OpenStore, topic: Topic) -> None:
    group = lived_in(store, topic)
    reset(store, group, topic, Edge.BEGINNING)
    in_each = [(1, *HELD), (2, *HELD), (0, *UNREAD)]
    assert told(store, topic) == [(number, *each) for number in range(2) for each in in_each]


def test_ahead_resets_come_before_skips(store: OpenStore, topic: Topic) -> None:
    group = lived_in(store, topic)
    reset(store, group, topic, Edge.END, queue=1)
    assert told(store, topic) == [
        (1, 1, *HELD),
        (1, 2, *HELD),
        *((1, offset, "SKIP", "READY") for offset in (1, 2, 3, 4)),
    ]


def test_without_progress_nothing_is_between(store: OpenStore, topic: Topic) -> None:
    group = store.group()
    reset(store, group, topic, 2)
    assert told(store, topic) == []


def test_to_where_it_is_only_what_is_held(store: OpenStore, topic: Topic) -> None:
    group = lived_in(store, topic)
    assert from_to(reset(store, group, topic, 3, queue=0)) == [(3, 3)]
    assert told(store, topic) == [(0, at, *each) for each in (HELD, ("SKIP", "READY")) for at in (1, 2)]


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 6])
def test_of_all_queues_together_no_more_than_the_limit(
    store: OpenStore, topic: Topic, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(progress_reset, "RECORDED_MAX", most)
    group = lived_in(store, topic)
    reset(store, group, topic, Edge.BEGINNING)
    everything = [(number, *each) for number in range(2) for each in [(1, *HELD), (2, *HELD), (0, *UNREAD)]]
    assert told(store, topic) == everything[:most]


def test_messages_before_the_new_offset_take_no_room(
    store: OpenStore, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_reset, "RECORDED_MAX", 1)
    group = store.group(meets=[topic])
    store.ack(group, *store.receive(group, topic))
    told(store, topic)
    reset(store, group, topic, 2, queue=1)
    assert told(store, topic) == [(1, 2, *UNREAD)]


def test_other_groups_messages_are_not_in_it(store: OpenStore, topic: Topic) -> None:
    other = store.group("other", meets=[topic])
    assert len(store.receive(other, topic)) == 6
    group = lived_in(store, topic)
    reset(store, group, topic, Edge.BEGINNING, queue=0)
    rows = store.rows("SELECT DISTINCT group_id, at_ms FROM history")
    assert rows == [(group.group_id, store.now_ms)]
    assert len(told(store, topic)) == 3


def test_a_redriven_message_that_is_held_is_named_by_its_first_key(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    die(store, group, topic)
    redrive_all(store, group)
    assert len(store.receive(group, topic)) == 1
    told(store, topic)
    reset(store, group, topic, Edge.END)
    assert told(store, topic) == [(0, 0, *HELD), (0, 0, "SKIP", "READY")]
    assert states_by_offset(store, group, topic) == "C"
    assert store.receive(group, topic) == []


@pytest.mark.parametrize("level", HistoryLevel)
def test_each_row_says_why(store: OpenStore, topic: Topic, level: HistoryLevel) -> None:
    group = store.group(meets=[topic], history=level)
    reset(store, group, topic, 2, queue=1)
    rows = store.rows("SELECT reason, client_id FROM history")
    expected = [("an operator has moved the group from offset 0 to 2", "")] * 2
    assert rows == (expected if level is not HistoryLevel.NONE else [])


def test_several_topics_go_together(store: OpenStore, topic: Topic) -> None:
    other = store.topic("other")
    store.send(other, 4)
    group = pull_group(store)
    goals = [Goal(other, other.queues[0], Edge.END), Goal(topic, topic.queues[1], 2), Goal(topic, topic.queues[0], 0)]
    moved = store.one(progress_reset.reset, Reset(group, goals))
    assert moved == [MovedOffset(other.name, 0, -1, 4), *(MovedOffset(topic.name, at, -1, 2 * at) for at in (1, 0))]
    assert store.rings == {topic.topic_id, other.topic_id}
    assert store.outdated == {Invalidation(RESETS, *group.name)}
    beyond = Reset(group, [goals[1], goals[0]._replace(to=5)])
    refusal = refused_reset(store, beyond)
    assert isinstance(refusal, IllegalOffset)
    assert "offset 5 is not in queue 0 of topic 'other', which stores 0 to 4" in refusal.sentence
    progress_reset.check(store.conn, [*goals[1:], goals[0]._replace(to=Since(0))])
    with pytest.raises(IllegalOffset):
        progress_reset.check(store.conn, beyond.goals)


@pytest.mark.parametrize("to", [Edge.BEGINNING, Edge.END, Since(0), 2])
def test_each_reset_counts(store: OpenStore, topic: Topic, to: Any) -> None:
    group = store.group(meets=[topic])
    for count in (1, 2):
        reset(store, group, topic, to, queue=1)
        assert store.rows("SELECT resets FROM progress ORDER BY queue_id") == [(0,), (count,)]


def test_a_group_that_was_removed_is_named(store: OpenStore, topic: Topic) -> None:
    group = store.group(meets=[topic])
    store.conn.execute(delete(schema.consumer_group).where(schema.consumer_group.c.group_id == group.group_id))
    store.conn.commit()
    assert isinstance(refused_reset(store, reset_of(group, topic, 0)), ConsumerGroupNotFound)


def test_dead_letters_from_the_new_offset_on_are_reset_in_their_queue_alone(store: OpenStore, topic: Topic) -> None:
    group, other = store.group(meets=[topic]), store.group("other", meets=[topic])
    for each in (group, other):
        for held in store.receive(each, topic):
            store.forward(each, held)
    reset(store, group, topic, 1, queue=0)
    assert states_by_offset(store, group, topic) == "DRRDDD"
    assert states_by_offset(store, other, topic) == "DDDDDD"


@pytest.mark.parametrize("paused", ["a", "b"])
def test_a_paused_message_group_stays_closed_and_others_do_not(store: OpenStore, paused: str) -> None:
    topic = store.topic(accepts=ORDERED)
    group = store.group(meets=[topic])
    store.send(topic, [*in_order("a", 1), *in_order("b", 1)])
    store.conn.exec_driver_sql(
        f"INSERT INTO pause VALUES ({group.group_id}, {topic.topic_id}, '{paused}', {topic.queues[0].queue_id}, 1, '')"
    )
    store.conn.commit()
    assert len(store.receive(group, topic)) == 2
    reset(store, group, topic, Edge.BEGINNING)
    got = store.receive(group, topic)
    assert [each.stored.message.message_group for each in got] == ["b" if paused == "a" else "a"]
    store.conn.exec_driver_sql("DELETE FROM message_group_progress")
    store.conn.exec_driver_sql("DELETE FROM pause")
    store.conn.commit()


def test_a_redriven_message_that_a_users_transaction_acks_is_not_taken_away(store: OpenStore) -> None:
    if store.database.is_sqlite:
        pytest.skip("SQLite has one writer")
    topic = store.topic()
    group = store.group(meets=[topic])
    die(store, group, topic, 2)
    redrive_all(store, group)
    one, _ = store.receive(group, topic, invisible_ms=HOUR)
    with store.database.connect_writer() as other:
        store.database.begin(other)
        other.execute(text("SELECT 1 FROM delivery ORDER BY message_key DESC LIMIT 1 FOR UPDATE"))
        assert isinstance(refused_reset(store, reset_of(group, topic, 0)), TooManyRequests)
        other.exec_driver_sql("ROLLBACK")
    assert store.ack(group, one) == [None]
    reset(store, group, topic, 0)
    assert states_by_offset(store, group, topic) == "RR"
