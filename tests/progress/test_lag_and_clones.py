"""How far groups are behind, and groups that begin where others stand."""

from __future__ import annotations

import pytest

from popserver.catalog import groups
from popserver.database.notifications import RESETS, Invalidation
from popserver.members import locks
from popserver.model.errors import BadRequest, ConsumerGroupNotFound, PopError
from popserver.model.group import ConsumeFrom, Group
from popserver.model.retry import Holder
from popserver.model.topic import Topic
from popserver.progress import clone, lag
from popserver.progress.clone import Clone
from popserver.progress.lag import QueueLag
from popserver.pulling.rules import QueueProgress
from tests.support.builders import an_id, in_order
from tests.support.open_store import HOUR, START_MS, OpenStore
from tests.support.progress import ORDERED, commit, from_to, offsets_of, pull_group, skip
from tests.support.send_back import hand_back, retries_of

pytestmark = pytest.mark.timeout(14)  # a search that is broken may have no end


def lag_of(store: OpenStore, group: Group, topic: Topic | None = None, limit: int = 100) -> list[QueueLag]:
    return lag.queue_lag(store.conn, group, topic.topic_id if topic else None, store.now_ms, limit)[0]


def refused_clone(store: OpenStore, request: Clone) -> PopError:
    before = store.digest()
    (refusal,) = store.do(clone.clone, request)
    assert isinstance(refusal, PopError)
    assert store.digest() == before
    return refusal


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    made = store.topic(queues=3, accepts=ORDERED)
    for queue in range(3):
        store.send(made, 10, queue=queue)
    for number in range(4):
        store.send(made, in_order(f"g{number}", 6))
    return made


@pytest.mark.row("K8")
def test_queues_add_up_to_the_one_view_for_groups_of_either_mode(store: OpenStore, topic: Topic) -> None:
    popping, pulling = store.group("popping", meets=[topic], intervals_ms=[HOUR]), pull_group(store)
    held = store.receive(popping, topic, 20, holder=Holder.PUSH)
    store.receive(popping, topic, 9)
    store.ack(popping, *held[:4])
    store.change(popping, held[5], HOUR)
    store.change(popping, held[6], 0, give_back=True)
    store.forward(popping, held[7])
    commit(store, pulling, topic, 7)
    for group in (popping, pulling):
        queues, whole = lag_of(store, group), store.lag(group)
        for name in ("ready", "inflight", "waiting_retry"):
            assert sum(getattr(each, name) for each in queues) == getattr(whole, name), (group.name, name)
        assert sum(each.ready for each in queues) > 0
    assert sum(each.inflight for each in lag_of(store, popping)) > 0


def test_a_queue_in_numbers(store: OpenStore) -> None:
    topic, other = store.topic(queues=2), store.topic("another")
    group = pull_group(store)
    store.send(topic, 10)
    store.send(other, 3)
    commit(store, group, topic, 4)
    commit(store, group, other, 1)
    store.one(locks.lock, locks.Lock(group, "c7", topic.queues))
    assert lag_of(store, group) == [
        QueueLag(other.name, 0, 0, 3, 1, 2, 0, 0, "", START_MS),
        QueueLag(topic.name, 0, 0, 10, 4, 6, 0, 0, "c7", START_MS),
    ], "where it has progress"
    assert lag_of(store, group, other) == [QueueLag(other.name, 0, 0, 3, 1, 2, 0, 0, "", START_MS)]
    store.now_ms += locks.LAPSE_MS
    assert {each.client_id for each in lag_of(store, group)} == {""}
    found, count = lag.queue_lag(store.conn, group, None, store.now_ms, 1)
    assert (len(found), count) == (1, 2)


def test_what_retention_has_taken_is_no_lag(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 10)
    store.conn.exec_driver_sql("DELETE FROM message WHERE (message_key & 1099511627775) < 4")
    store.conn.exec_driver_sql("UPDATE queue SET min_offset = 4")
    assert lag_of(store, group) == [QueueLag(topic.name, 0, 4, 10, 0, 6, 0, 0, "", START_MS)]
    assert store.lag(group).ready == 6


def test_a_clone_begins_at_the_first_that_its_source_is_not_done_with(store: OpenStore) -> None:
    topic = store.topic()
    source, group = store.group("source", meets=[topic]), store.group()
    store.send(topic, 10)
    held = store.receive(source, topic, 6)
    store.ack(source, *held[:2], *held[3:5])
    assert from_to(store.one(clone.clone, Clone(source, group, [topic]))) == [(-1, 2)]
    assert store.outdated == {Invalidation(RESETS, *group.name)}
    assert store.rings == {topic.topic_id}
    assert offsets_of(store.receive(group, topic)) == [2, 3, 4, 5, 6, 7, 8, 9], "some repeat, none is lost"
    assert len(store.receive(source, topic)) == 4, "the source goes on"


def test_what_a_message_group_has_left_behind_is_cloned(store: OpenStore) -> None:
    topic = store.topic(accepts=ORDERED)
    source, group = store.group("source", meets=[topic]), store.group()
    store.send(topic, in_order("stuck", 5))
    (head,) = store.receive(source, topic, 1)
    assert store.receive(source, topic) == []
    store.ack(source, head)
    assert skip(store, source, topic, 1).is_done
    store.one(clone.clone, Clone(source, group, [topic]))
    assert offsets_of(store.receive(group, topic)) == [2, 3, 4]


def test_clones_of_pull_groups(store: OpenStore, topic: Topic) -> None:
    source, group = pull_group(store), pull_group(store, "other")
    commit(store, source, topic, 7)
    assert from_to(store.one(clone.clone, Clone(source, group, [topic]))) == [(-1, 7)], "where it has progress"
    assert commit(store, group, topic, 3, resets=0).stored == QueueProgress(7, 1)


def test_what_members_have_handed_back_is_cloned(store: OpenStore) -> None:
    topic = store.topic()
    source = pull_group(store, "source")
    store.send(topic, 9)
    for offset in (3, 5, 7):
        hand_back(store, source, topic, offset, delay_level=1)
    commit(store, source, topic, 9)
    assert cloned(store, source, topic) == [3], "it waits"
    store.end_due(after_ms=HOUR)
    assert cloned(store, source, topic) == [3], "its copy waits to be pulled"
    retries = retries_of(store, source)
    commit(store, source, retries, 2)
    assert cloned(store, source, topic) == [7]
    hand_back(store, source, retries, 1, delay_level=1)
    assert cloned(store, source, topic) == [5], "it has failed again"
    store.end_due(after_ms=HOUR)
    commit(store, source, retries, 4)
    assert cloned(store, source, topic) == [9]


def cloned(store: OpenStore, source: Group, topic: Topic) -> list[int]:
    """Where a new group begins that is cloned now."""
    group = store.group(an_id())
    return [each.to_offset for each in store.one(clone.clone, Clone(source, group, [topic]))]


def test_a_group_with_progress_is_no_clone(store: OpenStore, topic: Topic) -> None:
    other = store.topic("another")
    source, group = store.group("source", meets=[other, topic]), store.group(meets=[topic])
    refusal = refused_clone(store, Clone(source, group, [other, topic]))
    assert isinstance(refusal, BadRequest)
    assert "'billing' has progress in topic 'orders' already; move it with: popmq group reset" in refusal.sentence
    assert isinstance(refused_clone(store, Clone(source, source, [topic])), BadRequest)


def test_a_group_that_is_gone_is_no_clone(store: OpenStore, topic: Topic) -> None:
    source, group = store.group("source", meets=[topic]), store.group()
    store.one(groups.delete_group, groups.DeleteGroup(group.name))
    assert isinstance(refused_clone(store, Clone(source, group, [topic])), ConsumerGroupNotFound)


@pytest.mark.row("I7")
@pytest.mark.user("U20")
def test_where_a_new_group_begins_is_its_own_attribute_and_nothing_else(store: OpenStore) -> None:
    """However young the topic is: what is asked for is done."""
    topic = store.topic()
    store.send(topic, 3)
    latest = store.group("latest", meets=[topic], consume_from=ConsumeFrom.LATEST)
    earliest = store.group("earliest", meets=[topic], consume_from=ConsumeFrom.EARLIEST)
    assert [each.offset for group in (latest, earliest) for each in lag_of(store, group)] == [3, 0]
