"""Redriven messages beside everything else an operator does: resets, skips, clones, deletions, retention, purges."""

from __future__ import annotations

import pytest

from popserver.administration import message_facts, why
from popserver.catalog import groups, topics
from popserver.dead_letters import plan_requests, plans
from popserver.dead_letters import purge as dead_letters_purge
from popserver.dead_letters.rules import RedriveItem, Repair
from popserver.delivery.retry_topic import RetryOrigin, retry_origin_of
from popserver.maintenance import retention
from popserver.model.errors import MessageNotFound, PopError
from popserver.model.group import Group, Mode
from popserver.model.message import REDRIVE_OF, REDRIVE_PLAN
from popserver.model.names import dead_letter_topic, retry_topic
from popserver.model.retry import Holder
from popserver.model.states import State
from popserver.model.topic import Topic, message_key
from popserver.progress import clone, lag
from popserver.progress.rules import Edge
from tests.support.open_store import HOUR, MINUTE, OpenStore, bodies, ids
from tests.support.progress import reset, skip
from tests.support.redrive import (
    a_plan,
    die,
    give_up,
    letter_ids,
    letters,
    lineage,
    order,
    redrive_all,
    run,
    write_plan,
)
from tests.support.send_back import commit, fail_again, hand_back, pull_group, retries, retries_of

pytestmark = pytest.mark.timeout(14)  # what goes in steps may have no end


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    return store.topic()


@pytest.fixture
def group(store: OpenStore, topic: Topic) -> Group:
    return store.group(meets=[topic])


def purge(store: OpenStore, group: Group, *more: int) -> int:
    return store.one(
        dead_letters_purge.purge_letters, dead_letters_purge.PurgeLetters(group, more or letter_ids(store, group))
    )


class TestAGroupOfModePull:
    @pytest.fixture
    def pulls(self, store: OpenStore, topic: Topic) -> Group:
        return pull_group(store, "pulling")._replace(mode=Mode.PULL)

    def test_finds_it_in_its_retry_topic(self, store: OpenStore, topic: Topic, pulls: Group) -> None:
        (sent,) = store.send(topic, properties={"p": "v"})
        assert hand_back(store, pulls, topic, 0, -1) is True
        assert redrive_all(store, pulls) == (1, 0)
        (again,) = retries(store, pulls)
        assert again.message.message_id == sent.message_id
        properties = again.message.properties
        assert (properties["p"], properties[REDRIVE_OF], properties[REDRIVE_PLAN]) == ("v", sent.message_id, "p1")
        assert retry_origin_of(properties) == RetryOrigin("orders", 0, message_key(topic.queues[0].queue_id, 0), 0)
        assert store.rows("SELECT 1 FROM delivery") == []
        assert [row.outcome for row in lineage(store, "p1")] == ["READY"]
        found, _ = message_facts.message_facts(store.conn, pulls.name, topic.name, sent.message_id, store.times)
        words = why.sentence(found, str)
        assert words.startswith(f"redriven by plan 'p1' {store.now_ms}, it is at offset 0 of topic '%RETRY%pulling'")
        assert "READY" in words

    def test_says_how_often_an_operator_had_moved_the_group(self, store: OpenStore, topic: Topic, pulls: Group) -> None:
        commit(store, pulls, topic, 0)
        for _ in range(2):
            reset(store, pulls, topic, Edge.BEGINNING)
        store.send(topic)
        hand_back(store, pulls, topic, 0, -1)
        redrive_all(store, pulls)
        (again,) = retries(store, pulls)
        assert retry_origin_of(again.message.properties).resets == 2

    def test_may_fail_again_and_it_dies_as_the_same_copy(self, store: OpenStore, topic: Topic, pulls: Group) -> None:
        store.send(topic)
        hand_back(store, pulls, topic, 0, -1)
        (before,) = letters(store, pulls)
        order(store, pulls, [RedriveItem(before.id, "", Repair(b"mended"))])
        assert [each.message.body for each in retries(store, pulls)] == [b"mended"]
        place = topics.find_topic(store.conn, retry_topic(pulls.name))
        assert place is not None
        assert hand_back(store, pulls, place, 0) is False, "attempts begin anew"
        assert [row.outcome for row in lineage(store, "p1")] == ["WAITING_RETRY"]
        assert fail_again(store, pulls, delay_level=-1) is True
        (after,) = letters(store, pulls)
        assert (after.copy_key, after.origin_key, after.redrive_state) == (before.copy_key, before.origin_key, None)
        assert [row.outcome for row in lineage(store, "p1")] == ["DLQ"]
        redrive_all(store, pulls, "p2")
        assert [each.message.body for each in retries(store, pulls)][-1] == b"body", "the dead letter is what was sent"


def test_a_pop_group_that_reads_its_retry_topic_has_it_there(store: OpenStore, topic: Topic, group: Group) -> None:
    die(store, group, topic, 2)
    first, second = letter_ids(store, group)
    order(store, group, [RedriveItem(first, "", Repair(b"mended"))])
    store.ack(group, *store.receive(group, topic))
    place = topics.find_topic(store.conn, retry_topic(group.name))
    assert place is not None
    store.meet(group, place)
    store.ack(group, *store.receive(group, place))
    assert order(store, group, [RedriveItem(second)], "p2") == (1, 0)
    assert [row.outcome for row in lineage(store, "p2")] == ["READY"]
    assert list(store.states(group).values()) == [State.COMMIT, State.READY]
    store.ack(group, *store.receive(group, place))
    assert [row.outcome for row in lineage(store, "p2")] == ["COMMIT"]
    assert set(store.states(group).values()) == {State.COMMIT}


class TestAReset:
    def test_lets_it_be_read_in_its_queue_again(self, store: OpenStore, topic: Topic, group: Group) -> None:
        (dead,) = die(store, group, topic)
        redrive_all(store, group)
        (held,) = store.receive(group, topic)
        reset(store, group, topic, Edge.BEGINNING)
        assert store.rows("SELECT 1 FROM delivery") == []
        assert store.ack(group, held)[0] is not None
        assert store.states(group) == {dead: State.READY}
        assert [row.outcome for row in lineage(store, "p1")] == ["READY"]
        assert store.lag(group).ready == 1
        (held,) = store.receive(group, topic)
        assert ids([held]) == [dead]
        assert [row.redrive_state for row in letters(store, group)] == ["RESET"]
        assert [row.outcome for row in lineage(store, "p1")] == ["INFLIGHT"]
        store.ack(group, held)
        assert [row.outcome for row in lineage(store, "p1")] == ["COMMIT"]

    def test_beyond_it_ends_it(self, store: OpenStore, topic: Topic, group: Group) -> None:
        (dead,) = die(store, group, topic)
        redrive_all(store, group)
        reset(store, group, topic, Edge.END)
        assert store.states(group) == {dead: State.COMMIT}
        assert store.receive(group, topic) == []
        assert [row.outcome for row in lineage(store, "p1")] == ["COMMIT"]


def test_a_skip_ends_it(store: OpenStore, topic: Topic, group: Group) -> None:
    (dead,) = die(store, group, topic)
    redrive_all(store, group)
    assert skip(store, group, topic, 0).is_done
    assert store.states(group) == {dead: State.COMMIT}
    assert store.rows("SELECT 1 FROM delivery") == []


def test_a_clone_begins_no_later_than_where_it_stood_first(store: OpenStore, topic: Topic, group: Group) -> None:
    die(store, group, topic)
    store.send(topic, 2)
    store.ack(group, *store.receive(group, topic))
    redrive_all(store, group)
    other = store.group("others")
    (moved,) = store.one(clone.clone, clone.Clone(group, other, [topic]))
    assert (moved.from_offset, moved.to_offset) == (-1, 0)


def test_a_clone_of_what_is_done_begins_behind_it(store: OpenStore, topic: Topic, group: Group) -> None:
    die(store, group, topic)
    order(store, group, [RedriveItem(each, "", Repair(b"x")) for each in letter_ids(store, group)])
    store.ack(group, *store.receive(group, topic))
    source = groups.groups_by_id(store.conn, [group.group_id])[group.group_id].group
    (moved,) = store.one(clone.clone, clone.Clone(source, store.group("others"), [topic]))
    assert moved.to_offset == 1


def test_the_lag_of_a_queue_counts_it_where_it_stood_first(store: OpenStore, topic: Topic, group: Group) -> None:
    die(store, group, topic, 3)
    redrive_all(store, group)
    store.receive(group, topic, 1)
    (queue,), count = lag.queue_lag(store.conn, group, topic.topic_id, store.now_ms, 10)
    assert (queue.ready, queue.inflight, count) == (2, 1, 1)
    assert (store.lag(group).ready, store.lag(group).inflight) == (2, 1)


def test_retention_keeps_what_has_a_delivery(store: OpenStore, topic: Topic, group: Group) -> None:
    die(store, group, topic, 2)
    orders = [RedriveItem(each, "", Repair(b"mended")) for each in letter_ids(store, group)]
    order(store, group, orders)
    store.now_ms += HOUR
    while store.one(retention.retain, retention.Retain(store.now_ms)).removed:
        pass
    store.check()
    held = store.receive(group, topic)
    assert bodies(held) == [b"mended"] * 2
    store.ack(group, held[0])
    while store.one(retention.retain, retention.Retain(store.now_ms)).removed:
        pass
    retry = topics.find_topic(store.conn, retry_topic(group.name))
    assert retry is not None
    query = "SELECT COUNT(*) FROM message WHERE topic_id = :id"
    assert store.one_value(query, id=retry.topic_id) == 1, "one is held still"
    store.ack(group, held[1])
    while store.one(retention.retain, retention.Retain(store.now_ms)).removed:
        pass
    assert store.one_value(query, id=retry.topic_id) == 0


def test_it_goes_with_its_topic(store: OpenStore, topic: Topic, group: Group) -> None:
    die(store, group, topic, 3)
    one, two, _three = letter_ids(store, group)
    order(store, group, [RedriveItem(one), RedriveItem(two, "", Repair(b"mended"))])
    store.one(topics.delete_topic, topics.DeleteTopic(topic.name))
    store.purge()
    assert store.rows("SELECT 1 FROM delivery") == []
    assert len(letters(store, group)) == 3
    store.check()
    again = store.topic()
    store.meet(group, again)
    assert store.receive(group, again) == []


def test_it_goes_with_its_group(store: OpenStore, topic: Topic, group: Group) -> None:
    die(store, group, topic, 2)
    redrive_all(store, group)
    store.one(groups.delete_group, groups.DeleteGroup(group.name))
    store.purge()
    for table in ("delivery", "dead_letter", "redrive", "redrive_plan"):
        assert store.rows(f"SELECT 1 FROM {table}") == []


def test_what_goes_with_its_dead_letter_topic_is_skipped(store: OpenStore, topic: Topic, group: Group) -> None:
    die(store, group, topic, 2)
    write_plan(store, group)
    store.one(topics.delete_topic, topics.DeleteTopic(dead_letter_topic(group.name)))
    with pytest.raises(MessageNotFound, match="was deleted with topic '%DLQ%billing'"):
        order(store, group, [RedriveItem(letter_ids(store, group)[0])], "p2")
    assert run(store) == (0, 2)
    assert {row.note for row in lineage(store, "p1")} == {
        "its group's dead-letter topic is deleted, and the message with it"
    }
    assert store.receive(group, topic) == []
    store.purge()
    store.check()


class TestAPurge:
    @pytest.mark.row("L12")
    def test_removes_the_copies_and_moves_the_beginning_up(self, store: OpenStore, topic: Topic, group: Group) -> None:
        die(store, group, topic, 4)
        one, two, three, _four = letter_ids(store, group)
        assert purge(store, group, two) == 1
        place = topics.find_topic(store.conn, dead_letter_topic(group.name))
        assert place is not None
        query = "SELECT min_offset FROM queue WHERE queue_id = :id"
        assert store.one_value(query, id=place.queues[0].queue_id) == 0
        assert purge(store, group, one, two, three) == 2
        assert store.one_value(query, id=place.queues[0].queue_id) == 3
        # What the next queue has is nothing to it.
        later = store.topic("later")
        assert later.queues[0].queue_id == place.queues[0].queue_id + 1
        store.send(later)
        assert purge(store, group) == 1
        assert store.one_value(query, id=place.queues[0].queue_id) == 4
        assert letters(store, group) == []
        assert store.one_value("SELECT COUNT(*) FROM message WHERE topic_id = :id", id=place.topic_id) == 0
        assert len(die(store, group, topic)) == 1

    def test_leaves_what_is_redriven_and_not_done(self, store: OpenStore, topic: Topic, group: Group) -> None:
        die(store, group, topic, 3)
        one, two, three = letter_ids(store, group)
        order(store, group, [RedriveItem(one), RedriveItem(two, "", Repair(b"mended"))])
        assert purge(store, group) == 1
        assert letter_ids(store, group) == [one, two]
        store.check()
        held = store.receive(group, topic)
        assert purge(store, group) == 0
        store.ack(group, *held)
        assert purge(store, group) == 2
        assert [row.outcome for row in lineage(store, "p1")] == ["COMMIT", "COMMIT"]
        assert three not in letter_ids(store, group)

    def test_of_what_died_again_leaves_no_outcome(self, store: OpenStore, topic: Topic, group: Group) -> None:
        die(store, group, topic, 2)
        redrive_all(store, group)
        first, second = store.receive(group, topic)
        give_up(store, group, [first])
        store.ack(group, second)
        assert [row.outcome for row in lineage(store, "p1")] == ["DLQ", "COMMIT"]
        assert purge(store, group) == 2
        assert [(row.outcome, row.note) for row in lineage(store, "p1")] == [
            (None, "it died again, and was purged"),
            ("COMMIT", None),
        ]

    def test_of_what_died_in_its_target_leaves_no_outcome(self, store: OpenStore, topic: Topic, group: Group) -> None:
        die(store, group, topic)
        redrive_all(store, group, target=topic)
        give_up(store, group, store.receive(group, topic))
        assert purge(store, group) == 2
        assert [(row.outcome, row.state) for row in lineage(store, "p1")] == [(None, "REDRIVEN")]

    def test_leaves_what_another_group_has_in_hand(self, store: OpenStore, topic: Topic, group: Group) -> None:
        die(store, group, topic, 3)
        place = topics.find_topic(store.conn, dead_letter_topic(group.name))
        assert place is not None
        worker = store.group("worker", meets=[place])
        first, second = (store.receive(worker, place, 1, invisible_ms=MINUTE)[0] for _ in range(2))
        store.change(worker, second, MINUTE, give_back=True)
        assert purge(store, group) == 2
        store.check()
        assert store.ack(worker, first) == [None]
        assert store.receive(worker, place) == []
        assert purge(store, group) == 1

    def test_leaves_what_any_of_several_groups_has_in_hand(self, store: OpenStore, topic: Topic, group: Group) -> None:
        die(store, group, topic, 4)
        first, *_, last = letter_ids(store, group)
        place = topics.find_topic(store.conn, dead_letter_topic(group.name))
        assert place is not None
        one, two, three = (store.group(name, meets=[place]) for name in ("one", "two", "three"))
        # One has the first in hand, three the last. The second waits for one and two again.
        for worker, kept, again in ((one, 0, 1), (two, None, 1), (three, 3, None)):
            for number, each in enumerate(store.receive(worker, place, invisible_ms=MINUTE)):
                if number == again:
                    store.change(worker, each, MINUTE, give_back=True)
                elif number != kept:
                    store.ack(worker, each)
        assert purge(store, group) == 2
        assert letter_ids(store, group) == [first, last]
        assert [row.group_id for row in store.rows("SELECT group_id FROM delivery ORDER BY group_id")] == [
            one.group_id,
            three.group_id,
        ]

    def test_of_a_pull_group_waits_until_it_has_committed(self, store: OpenStore, topic: Topic) -> None:
        pulls = pull_group(store, "pulling")._replace(mode=Mode.PULL)
        store.send(topic)
        hand_back(store, pulls, topic, 0, -1)
        redrive_all(store, pulls)
        assert purge(store, pulls) == 0
        commit(store, pulls, retries_of(store, pulls), 1)
        assert [row.outcome for row in lineage(store, "p1")] == ["COMMIT"]
        assert purge(store, pulls) == 1


class TestAGroupThatReadsItsOwnDeadLetters:
    def test_is_given_a_message_of_its_own(self, store: OpenStore, topic: Topic, group: Group) -> None:
        (dead,) = die(store, group, topic)
        place = topics.find_topic(store.conn, dead_letter_topic(group.name))
        assert place is not None
        store.meet(group, place)
        (read,) = store.receive(group, place)
        redrive_all(store, group)
        assert ids(store.receive(group, topic)) == [dead]
        assert store.ack(group, read) == [None]

    def test_does_not_get_twice_what_was_redriven_before(self, store: OpenStore, topic: Topic, group: Group) -> None:
        (dead,) = die(store, group, topic)
        redrive_all(store, group)
        place = topics.find_topic(store.conn, dead_letter_topic(group.name))
        assert place is not None
        store.meet(group, place)
        assert store.receive(group, place) == []
        assert ids(store.receive(group, topic)) == [dead]


class TestWhatCannotGoBack:
    def test_is_skipped_with_the_reason(self, store: OpenStore, topic: Topic, group: Group) -> None:
        other = store.topic("other")
        store.meet(group, other)
        die(store, group, topic, 3)
        die(store, group, other)
        one, two, _three, _four = letter_ids(store, group)
        write_plan(store, group)
        redriven = order(store, group, [RedriveItem(one)], "p0")
        assert redriven == (1, 0)
        assert purge(store, group, two) == 1
        store.one(topics.delete_topic, topics.DeleteTopic(other.name))
        assert run(store) == (1, 3)
        assert [(row.state, row.note) for row in lineage(store, "p1")] == [
            ("SKIPPED", "it was no dead letter any more when its turn came"),
            ("SKIPPED", "it was no dead letter any more when its turn came"),
            ("REDRIVEN", None),
            ("SKIPPED", "the topic it came from is deleted; make a plan with a target topic"),
        ]

    def test_is_refused_where_it_is_named(self, store: OpenStore, topic: Topic, group: Group) -> None:
        die(store, group, topic)
        (one,) = letter_ids(store, group)
        store.one(topics.delete_topic, topics.DeleteTopic(topic.name))
        before = store.digest()
        for orders, words in (
            ([RedriveItem(one)], "is deleted"),
            ([RedriveItem(99), RedriveItem(one)], "no dead letter 99"),
        ):
            (refusal,) = store.do(plans.redrive_now, plan_requests.RedriveNow(a_plan(group), orders))
            assert isinstance(refusal, PopError)
            assert words in refusal.sentence
        assert store.digest() == before


def test_what_dies_of_a_lapse_goes_back_too(store: OpenStore, topic: Topic) -> None:
    group = store.group("once", meets=[topic], max_attempts=1)
    die(store, group, topic)
    redrive_all(store, group)
    store.receive(group, topic, holder=Holder.PUSH, invisible_ms=HOUR, client_id="gone")
    store.orphan_client("gone")
    store.end_due(after_ms=MINUTE)
    (row,) = letters(store, group)
    assert row.redrive_state is None
    give_up(store, group, [])
