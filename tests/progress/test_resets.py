"""Resets: progress goes where an operator says, in either direction and for groups of either mode."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import text

from popserver.catalog import groups, topics
from popserver.database.notifications import RESETS, Invalidation
from popserver.engine.transaction import STEP_ROWS_MAX
from popserver.model.errors import (
    BadRequest,
    ConsumerGroupNotFound,
    IllegalOffset,
    InvalidReceiptHandle,
    TooLate,
    TooManyRequests,
    TopicNotFound,
)
from popserver.model.group import HistoryLevel
from popserver.model.retry import Holder
from popserver.progress import reset as progress_reset
from popserver.progress.rules import Edge, Since
from popserver.pulling.rules import QueueProgress
from tests.support.builders import GROUP, TOPIC, in_order
from tests.support.open_store import SECOND, OpenStore, receipt_of
from tests.support.progress import (
    ORDERED,
    commit,
    from_to,
    offsets_of,
    pull_group,
    refused_reset,
    reset,
    reset_of,
    states_by_offset,
)


@pytest.mark.row("H13")
def test_back_everything_is_read_again_in_its_order(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 10)
    acked = store.receive(group, topic, 8)
    store.ack(group, *acked[:6])
    assert states_by_offset(store, group, topic) == "CCCCCCIIRR"
    assert from_to(reset(store, group, topic, 2)) == [(8, 2)]
    assert states_by_offset(store, group, topic) == "CCRRRRRRRR"
    assert store.rings == {topic.topic_id}
    again = store.receive(group, topic)
    assert offsets_of(again) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert {each.attempt for each in again} == {1}


@pytest.mark.row("H13")
def test_ahead_everything_before_is_done(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic], intervals_ms=[SECOND])
    store.send(topic, 10)
    held, waits, *_ = store.receive(group, topic, 3, holder=Holder.PUSH)
    store.change(group, waits, SECOND)
    assert from_to(reset(store, group, topic, Edge.END)) == [(3, 10)]
    assert states_by_offset(store, group, topic) == "C" * 10
    assert store.ack(group, held) == [None], "what is done is done"
    assert store.end_due(after_ms=60 * SECOND) == 0, "nothing comes again"
    assert store.receive(group, topic) == []


def test_handles_from_before_hold_nothing(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 2)
    first, _ = store.receive(group, topic)
    reset(store, group, topic, Edge.BEGINNING)
    before = store.digest()
    (refusal,) = store.ack(group, first)
    assert isinstance(refusal, InvalidReceiptHandle)
    with pytest.raises(InvalidReceiptHandle):
        store.change(group, first, SECOND)
    assert store.digest() == before
    again, _ = store.receive(group, topic)
    assert isinstance(store.ack(group, first)[0], InvalidReceiptHandle), "a newer hold has replaced it"
    assert store.ack(group, again) == [None]


@pytest.mark.row("H13")
def test_by_time_and_by_ends_each_queue_has_its_own_place(store: OpenStore) -> None:
    topic = store.topic(queues=3)
    group = store.group(meets=[topic])
    for count in (1, 2, 3):
        store.now_ms += 10 * SECOND
        store.send(topic, count, queue=0)
        store.send(topic, 1, queue=1)
    since = Since(store.now_ms - 10 * SECOND)
    assert from_to(reset(store, group, topic, since)) == [(0, 1), (0, 1), (0, 0)]
    assert from_to(reset(store, group, topic, Since(store.now_ms + 1))) == [(1, 6), (1, 3), (0, 0)]
    assert from_to(reset(store, group, topic, Since(0))) == [(6, 0), (3, 0), (0, 0)]
    assert from_to(reset(store, group, topic, Edge.END, queue=1)) == [(0, 3)]
    assert store.rows("SELECT next_offset, resets FROM progress ORDER BY queue_id") == [(0, 3), (3, 4), (0, 3)]


def test_a_group_that_never_met_the_topic_gets_its_place(store: OpenStore) -> None:
    topic = store.topic(queues=2)
    store.send(topic, 4, queue=0)
    store.send(topic, 4, queue=1)
    group = store.group()
    assert from_to(reset(store, group, topic, 3, queue=0)) == [(-1, 3)]
    store.meet(group, topic)
    assert sorted(offsets_of(store.receive(group, topic))) == [0, 1, 2, 3, 3], "elsewhere as its consume-from says"


@pytest.mark.row("H13")
def test_a_commit_from_before_is_refused(store: OpenStore) -> None:
    topic = store.topic()
    group = pull_group(store)
    store.send(topic, 200)
    commit(store, group, topic, 150, resets=0)
    assert from_to(reset(store, group, topic, 20)) == [(150, 20)]
    assert store.outdated == {Invalidation(RESETS, *group.name)}, "members that are online hear of it"
    late = commit(store, group, topic, 151, resets=0)
    assert isinstance(late.refusal, TooLate)
    assert late.stored == QueueProgress(20, 1)
    assert commit(store, group, topic, 21, resets=1).refusal is None


def test_the_first_progress_of_a_pull_group_may_be_a_reset(store: OpenStore) -> None:
    topic = store.topic()
    group = pull_group(store)
    store.send(topic, 9)
    assert from_to(reset(store, group, topic, 4)) == [(-1, 4)]
    begun_elsewhere = commit(store, group, topic, 9, resets=0)
    assert isinstance(begun_elsewhere.refusal, TooLate)
    assert store.lag(group).ready == 5


@pytest.mark.row("H13")
def test_message_groups_are_read_again_in_order(store: OpenStore) -> None:
    topic = store.topic(accepts=ORDERED)
    group = store.group(meets=[topic])
    for number in range(3):
        store.send(topic, [*in_order("a", 2), *in_order("b", 1, tag=str(number))])
    held = store.receive(group, topic, 4)
    store.ack(group, held[1])
    assert store.one_value("SELECT COUNT(*) FROM delivery") == 4
    reset(store, group, topic, Edge.BEGINNING)
    assert states_by_offset(store, group, topic) == "R" * 9
    again = store.receive(group, topic)
    assert sorted(offsets_of(again)) == list(range(9))
    of_a = [each.stored.offset for each in again if each.stored.message.message_group == "a"]
    assert of_a == sorted(of_a)


def test_a_blocked_message_group_is_passed_over_with_the_rest(store: OpenStore) -> None:
    topic = store.topic(accepts=ORDERED)
    group = store.group(meets=[topic])
    store.send(topic, in_order("stuck", 40))
    store.receive(group, topic, 1)
    store.receive(group, topic)
    assert store.one_value("SELECT COUNT(*) FROM message_group_progress") == 1
    reset(store, group, topic, 30)
    assert states_by_offset(store, group, topic) == "C" * 30 + "R" * 10
    assert offsets_of(store.receive(group, topic)) == list(range(30, 40))


def test_dead_letters_of_the_stretch_are_read_again(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 6)
    for each in store.receive(group, topic):
        store.forward(group, each)
    assert states_by_offset(store, group, topic) == "DDDDDD"
    reset(store, group, topic, 2)
    assert states_by_offset(store, group, topic) == "DDRRRR"
    assert store.rows("SELECT redrive_state FROM dead_letters ORDER BY id") == [(None,)] * 2 + [("RESET",)] * 4
    assert store.lag(group).dead_letters == 2
    one, *others = store.receive(group, topic)
    store.forward(group, one)
    store.ack(group, *others)
    assert states_by_offset(store, group, topic) == "DDDCCC"
    assert store.one_value("SELECT COUNT(*) FROM dead_letter") == 6, "it is the same dead letter"


@pytest.mark.parametrize("offset", [-1, 3, 11, 1 << 62, -(1 << 62)])
def test_beyond_its_queues_ends_it_is_refused(store: OpenStore, offset: int) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 10)
    store.conn.exec_driver_sql("DELETE FROM message WHERE (message_key & 1099511627775) < 4")
    store.conn.exec_driver_sql("UPDATE queue SET min_offset = 4")
    refusal = refused_reset(store, reset_of(group, topic, offset, queue=0))
    assert isinstance(refusal, IllegalOffset)
    assert f"offset {offset} is not in queue 0 of topic 'orders', which stores 4 to 10" in refusal.sentence


def test_one_illegal_offset_leaves_all_queues_alone(store: OpenStore) -> None:
    topic = store.topic(queues=2)
    group = store.group(meets=[topic])
    store.send(topic, 5, queue=0)
    assert isinstance(refused_reset(store, reset_of(group, topic, 5)), IllegalOffset), "queue 1 has none"


def test_a_queue_twice_is_refused(store: OpenStore) -> None:
    topic = store.topic()
    request = reset_of(store.group(), topic, 0)
    refusal = refused_reset(store, replace(request, goals=[*request.goals, *request.goals]))
    assert isinstance(refusal, BadRequest)
    assert "queue 0 of topic 'orders' is named 2 times" in refusal.sentence


def test_what_is_gone_is_named(store: OpenStore) -> None:
    topic, group, leaving = store.topic(), store.group(), store.group("leaving")
    store.one(groups.delete_group, groups.DeleteGroup(leaving.name))
    assert isinstance(refused_reset(store, reset_of(leaving, topic, 0)), ConsumerGroupNotFound)
    store.one(topics.delete_topic, topics.DeleteTopic(TOPIC))
    assert isinstance(refused_reset(store, reset_of(group, topic, 0)), TopicNotFound)


def test_a_plan_changes_nothing(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 10)
    store.receive(group, topic, 8)
    before = store.digest()
    assert from_to(progress_reset.plan(store.conn, reset_of(group, topic, 2))) == [(8, 2)]
    with pytest.raises(IllegalOffset):
        progress_reset.plan(store.conn, reset_of(group, topic, 11))
    assert store.digest() == before


def test_other_groups_and_queues_are_left_alone(store: OpenStore) -> None:
    topic = store.topic(queues=2)
    group, other = store.group(meets=[topic]), store.group("other", meets=[topic])
    for queue in (0, 1):
        store.send(topic, 5, queue=queue)
    for each in (group, other):
        for died in store.receive(each, topic)[::2]:
            store.forward(each, died)
    before = states_by_offset(store, other, topic), states_by_offset(store, group, topic)[5:]
    reset(store, group, topic, Edge.BEGINNING, queue=0)
    assert states_by_offset(store, group, topic)[:5] == "RRRRR"
    assert (states_by_offset(store, other, topic), states_by_offset(store, group, topic)[5:]) == before


@pytest.mark.row("H13")
def test_more_rows_than_a_step_go_together(store: OpenStore) -> None:
    """However much a group has in flight, behind and dead: either all of it is reset, or nothing."""
    topic = store.topic(accepts=ORDERED)
    group = store.group(meets=[topic])
    count = STEP_ROWS_MAX + 100
    store.send(topic, count)
    died = store.receive(group, topic, count)
    for each in died:
        store.forward(group, each)
    for start in range(0, count, 500):
        store.send(topic, [each for number in range(start, start + 500) for each in in_order(f"g{number}", 2)])
    while store.receive(group, topic, 500, heads_only=True):
        pass
    assert store.one_value("SELECT COUNT(*) FROM delivery") > STEP_ROWS_MAX
    assert store.one_value("SELECT COUNT(*) FROM message_group_progress") > STEP_ROWS_MAX
    reset(store, group, topic, Edge.BEGINNING)
    for table in ("delivery", "message_group_progress", "dead_letter WHERE redrive_state IS NULL"):
        assert store.one_value(f"SELECT COUNT(*) FROM {table}") == 0, table
    end = store.one_value("SELECT next_offset FROM queue WHERE topic_id = :topic", topic=topic.topic_id)
    assert store.lag(group).ready == end
    assert store.one_value("SELECT COUNT(*) FROM history WHERE event = 'RESET'") <= STEP_ROWS_MAX


def test_the_history_tells_what_the_law_calls_it(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic], history=HistoryLevel.ERRORS, intervals_ms=[SECOND])
    store.send(topic, 6)
    acked, held, waits, died, *_ = store.receive(group, topic, 5, holder=Holder.PUSH)
    store.ack(group, acked)
    store.change(group, waits, SECOND)
    store.forward(group, died)
    seen = len(store.history(group))
    reset(store, group, topic, 2)
    assert store.history(group)[seen:] == [
        ("RESET", "INFLIGHT", "READY", 1),
        ("RESET", "WAITING_RETRY", "READY", 1),
        ("RESET", "INFLIGHT", "READY", 1),
        ("RESET", "DLQ", "READY", 1),
        ("SKIP", "READY", "COMMIT", 1),
    ], "what was held before the new offset is taken from its holder, then passed over"
    seen = len(store.history(group))
    reset(store, group, topic, 4)
    assert store.history(group)[seen:] == [("SKIP", "READY", "COMMIT", 0)] * 2
    reason = "SELECT reason FROM history ORDER BY history_id DESC LIMIT 1"
    assert store.one_value(reason) == "an operator has moved the group from offset 2 to 4"
    assert receipt_of(held)


def test_a_group_without_a_history_leaves_none(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic], history=HistoryLevel.NONE)
    store.send(topic, 6)
    store.receive(group, topic, 5)
    reset(store, group, topic, Edge.BEGINNING)
    assert store.history(group) == []


def test_what_somebody_acks_in_a_transaction_of_his_own_is_not_reset_under_his_hands(store: OpenStore) -> None:
    if store.conn.dialect.name == "sqlite":
        pytest.skip("of Postgres")
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 3)
    store.receive(group, topic)
    with store.database.connect_writer() as other:
        other.exec_driver_sql("BEGIN")
        other.execute(text("SELECT 1 FROM delivery ORDER BY message_key LIMIT 1 FOR UPDATE")).all()
        refusal = refused_reset(store, reset_of(group, topic, 0))
        assert isinstance(refusal, TooManyRequests)
        assert "is locked by another transaction; nothing is reset" in refusal.sentence
        other.exec_driver_sql("ROLLBACK")
    assert from_to(reset(store, group, topic, 0)) == [(3, 0)]


def test_an_import_is_refused_to_groups_that_consume_message_by_message(store: OpenStore) -> None:
    topic = store.topic()
    store.send(topic, 3)
    popping = reset_of(store.group(meets=[topic]), topic, 2)
    refusal = refused_reset(store, replace(popping, not_of_pops=True))
    assert isinstance(refusal, BadRequest)
    assert f"consumer group '{GROUP}' consumes in mode POP" in refusal.sentence
    for group in (pull_group(store), store.group("unused")):
        assert from_to(store.one(progress_reset.reset, replace(reset_of(group, topic, 2), not_of_pops=True))) == [
            (-1, 2)
        ]
