"""Where a clone begins in each queue, and what of its source it takes."""

from __future__ import annotations

import pytest
from sqlalchemy import delete

from popserver.catalog import groups, topics
from popserver.database import schema
from popserver.database.notifications import RESETS, Invalidation
from popserver.dead_letters.rules import RedriveItem, Repair
from popserver.model.errors import BadRequest, ConsumerGroupNotFound
from popserver.model.group import Group, Mode
from popserver.model.topic import OFFSET_BITS, Topic
from popserver.progress import clone
from popserver.progress.clone import Clone
from popserver.progress.rules import MovedOffset
from tests.support.builders import an_id, in_order
from tests.support.open_store import HOUR, OpenStore, receipt_of
from tests.support.progress import ORDERED, commit, from_to, offsets_of, pull_group, reset
from tests.support.pulls import trim
from tests.support.redrive import die, letter_ids, order, redrive_all
from tests.support.send_back import hand_back, retries_of

pytestmark = pytest.mark.timeout(14)  # a search that is broken may have no end


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    made = store.topic(queues=3, accepts=ORDERED)
    for number in range(3):
        store.send(made, 6, queue=number)
    return made


def cloned(store: OpenStore, source: Group, *of: Topic) -> list[int]:
    """Where a new group begins that is cloned now, by queue."""
    return [each.to_offset for each in store.one(clone.clone, Clone(source, store.group(an_id()), of))]


def test_each_queue_by_itself(store: OpenStore, topic: Topic) -> None:
    source, other = (store.group(name, meets=[topic]) for name in ("source", "other"))
    for number, offset in enumerate((1, 6, 4)):
        reset(store, source, topic, offset, queue=number)
        reset(store, other, topic, 0, queue=number)
    group = store.group()
    moved = store.one(clone.clone, Clone(source, group, [topic]))
    assert moved == [MovedOffset(topic.name, number, -1, to) for number, to in enumerate((1, 6, 4))]
    rows = store.rows(
        "SELECT queue_id, next_offset, resets FROM progress WHERE group_id = :id ORDER BY queue_id", id=group.group_id
    )
    assert rows == [(queue.queue_id, to, 1) for queue, to in zip(topic.queues, (1, 6, 4), strict=True)]


def test_the_first_hold_of_each_queue(store: OpenStore, topic: Topic) -> None:
    source = store.group("source", meets=[topic])
    firsts = dict(zip((queue.queue_id for queue in topic.queues), (0, 2, 5), strict=True))
    held = store.receive(source, topic)
    done = [each for each in held if each.stored.offset != firsts[receipt_of(each).message_key >> OFFSET_BITS]]
    assert store.ack(source, *done) == [None] * 15
    assert cloned(store, source, topic) == [0, 2, 5]


def test_what_retention_has_removed_is_not_begun_at(store: OpenStore, topic: Topic) -> None:
    source = store.group("source", meets=[topic])
    reset(store, source, topic, 4, queue=1)
    for number in range(3):
        trim(store, topic, 3, queue=number)
    assert cloned(store, source, topic) == [3, 4, 3]


def test_a_redriven_message_is_begun_at_where_it_was_first(store: OpenStore, topic: Topic) -> None:
    source = store.group("source", meets=[topic])
    reset(store, source, topic, 6)
    die(store, source, topic, queue=1)
    assert cloned(store, source, topic) == [6, 7, 6], "a dead letter is left out"
    redrive_all(store, source)
    assert cloned(store, source, topic) == [6, 6, 6]
    (again,) = store.receive(source, topic)
    store.ack(source, again)
    assert cloned(store, source, topic) == [6, 7, 6]


def test_only_topics_that_are_named(store: OpenStore, topic: Topic) -> None:
    other = store.topic("other")
    store.send(other, 2)
    source, group = store.group("source", meets=[topic, other]), store.group()
    assert from_to(store.one(clone.clone, Clone(source, group, [other]))) == [(-1, 0)]
    assert store.rings == {other.topic_id}
    assert store.outdated == {Invalidation(RESETS, *group.name)}
    assert from_to(store.one(clone.clone, Clone(source, group, [topic]))) == [(-1, 0)] * 3
    assert sorted(offsets_of(store.receive(group, topic))) == sorted([*range(6)] * 3)


def test_all_named_topics_in_the_order_of_the_request(store: OpenStore, topic: Topic) -> None:
    other = store.topic("other")
    source, group = store.group("source", meets=[topic, other]), store.group()
    moved = store.one(clone.clone, Clone(source, group, [other, topic]))
    named = [(each.topic.name, each.number) for each in moved]
    assert named == [("other", 0), ("orders", 0), ("orders", 1), ("orders", 2)]
    assert store.rings == {topic.topic_id, other.topic_id}


def test_queues_in_which_the_source_has_no_progress_are_left_out(store: OpenStore, topic: Topic) -> None:
    source, group = store.group("source"), store.group()
    reset(store, source, topic, 2, queue=1)
    assert store.one(clone.clone, Clone(source, group, [topic])) == [MovedOffset(topic.name, 1, -1, 2)]


@pytest.mark.parametrize("mode", [Mode.POP, Mode.PULL])
def test_in_queues_that_the_source_does_not_read_a_group_of_mode_pop_begins_too(
    store: OpenStore, topic: Topic, mode: Mode
) -> None:
    """A group of mode POP reads all queues of a topic. Members of a group of mode PULL name their queues."""
    source = pull_group(store, "source")
    commit(store, source, topic, 4)
    group = store.group()
    store.meet(group, store.topic("other"), mode)
    moved = store.one(clone.clone, Clone(source, group, [topic]))
    assert moved == [MovedOffset(topic.name, 0, -1, 4)]
    rows = store.rows(
        "SELECT q.number, p.next_offset, p.resets FROM progress p JOIN queue q ON q.queue_id = p.queue_id"
        " WHERE p.group_id = :id AND q.topic_id = :topic ORDER BY q.number",
        id=group.group_id,
        topic=topic.topic_id,
    )
    assert rows == ([(0, 4, 1), (1, 0, 0), (2, 0, 0)] if mode is Mode.POP else [(0, 4, 1)])


def test_a_group_with_progress_in_one_queue_is_no_clone(store: OpenStore, topic: Topic) -> None:
    source, group = store.group("source", meets=[topic]), store.group()
    reset(store, group, topic, 0, queue=2)
    before = store.digest()
    (refusal,) = store.do(clone.clone, Clone(source, group, [topic]))
    assert isinstance(refusal, BadRequest)
    assert store.digest() == before


@pytest.mark.parametrize("is_source", [True, False], ids=["source", "group"])
@pytest.mark.parametrize("is_purged", [True, False], ids=["removed", "deleted"])
def test_a_group_that_is_gone_is_named(store: OpenStore, topic: Topic, is_source: bool, is_purged: bool) -> None:
    stays, leaving = store.group("stays"), store.group("leaving")
    store.meet(leaving if is_source else stays, topic)
    store.one(groups.delete_group, groups.DeleteGroup(leaving.name))
    if is_purged:
        store.conn.execute(delete(schema.consumer_group).where(schema.consumer_group.c.group_id == leaving.group_id))
        store.conn.commit()
    request = Clone(leaving, stays, [topic]) if is_source else Clone(stays, leaving, [topic])
    (refusal,) = store.do(clone.clone, request)
    assert isinstance(refusal, ConsumerGroupNotFound)
    assert "'leaving'" in refusal.sentence


def test_the_topics_of_a_group_are_those_that_exist_and_that_it_reads(store: OpenStore, topic: Topic) -> None:
    deleted, other, unread = (store.topic(name) for name in ("deleted", "other", "unread"))
    group = store.group(meets=[topic, deleted, other])
    store.group("another", meets=[unread])
    store.one(topics.delete_topic, topics.DeleteTopic(deleted.name))
    assert clone.topic_ids(store.conn, group) == {topic.topic_id, other.topic_id}


@pytest.mark.parametrize("rows_max", [1, 2, 1_000])
def test_the_earliest_of_all_messages_that_were_handed_back_counts(
    store: OpenStore, monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    monkeypatch.setattr(clone, "STEP_ROWS_MAX", rows_max)
    topic = store.topic(queues=1)
    source = pull_group(store, "source")
    store.send(topic, 9)
    for offset in (7, 3, 5):
        hand_back(store, source, topic, offset, delay_level=1)
        store.now_ms += 1
    commit(store, source, topic, 9)
    store.end_due(after_ms=HOUR)
    for done, first in ((0, 3), (1, 3), (2, 5), (3, 9)):
        commit(store, source, retries_of(store, source), done)
        assert cloned(store, source, topic) == [first]


def test_what_stands_in_the_queue_after_the_retry_topic_is_left_alone(store: OpenStore) -> None:
    topic = store.topic(queues=1)
    source = pull_group(store, "source")
    store.send(topic, 9)
    hand_back(store, source, topic, 5, delay_level=1)
    commit(store, source, topic, 9)
    store.end_due(after_ms=HOUR)
    commit(store, source, retries_of(store, source), 1)
    store.send(store.topic("after", queues=1), 2)
    assert cloned(store, source, topic) == [9]


def test_a_repaired_message_that_was_acked_is_done(store: OpenStore) -> None:
    """Its copy stays in the retry topic, which a group that consumes message by message does not read."""
    topic = store.topic(queues=1)
    source = store.group("source", meets=[topic])._replace(mode=Mode.POP)
    die(store, source, topic)
    (dead_letter_id,) = letter_ids(store, source)
    order(store, source, [RedriveItem(dead_letter_id, repair=Repair(b"whole"))])
    assert cloned(store, source, topic) == [0]
    store.ack(source, *store.receive(source, topic))
    assert cloned(store, source, topic) == [1]


def test_of_a_message_group_the_first_that_was_left_behind(store: OpenStore) -> None:
    topic = store.topic(accepts=ORDERED)
    source = store.group("source", meets=[topic])
    store.send(topic, [*in_order("done", 1), *in_order("stuck", 3)])
    done, stuck, *_ = store.receive(source, topic, 2)
    assert store.receive(source, topic) == []
    assert store.ack(source, done) == [None]
    assert cloned(store, source, topic) == [1]
    assert store.ack(source, stuck) == [None]
    assert cloned(store, source, topic) == [2]
