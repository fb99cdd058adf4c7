"""The end of a subscription in the store: what goes, what stays, who is told, and when it is refused."""

from __future__ import annotations

import pytest
from sqlalchemy import delete, text

from popserver.catalog import groups
from popserver.database import schema
from popserver.database.notifications import PAUSES, RESETS, SUBSCRIPTIONS, Invalidation
from popserver.model.errors import BadRequest, ConsumerGroupNotFound, NotFound, PopError, TooManyRequests
from popserver.model.group import Group
from popserver.model.retry import Holder
from popserver.model.topic import Topic
from popserver.progress import pause, unsubscribe
from popserver.progress.pause import SetPause
from popserver.progress.unsubscribe import Unsubscribe
from tests.support.builders import in_order
from tests.support.open_store import HOUR, SECOND, OpenStore
from tests.support.progress import ORDERED, offsets_of
from tests.support.redrive import die, redrive_all


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    return store.topic(queues=2, accepts=ORDERED)


@pytest.fixture
def group(store: OpenStore, topic: Topic) -> Group:
    return store.group(meets=[topic])


def end(store: OpenStore, group: Group, topic: Topic, *, ends_holds: bool = False) -> None:
    store.one(unsubscribe.unsubscribe, Unsubscribe(group, topic, ends_holds))


def refused(store: OpenStore, group: Group, topic: Topic, *, ends_holds: bool = False) -> PopError:
    before = store.digest()
    (outcome,) = store.do(unsubscribe.unsubscribe, Unsubscribe(group, topic, ends_holds))
    assert isinstance(outcome, PopError)
    assert store.digest() == before
    return outcome


def test_all_that_the_group_has_there_goes_but_for_its_dead_letters(
    store: OpenStore, group: Group, topic: Topic
) -> None:
    for number in (0, 1):
        die(store, group, topic, queue=number)
    redrive_all(store, group)
    store.send(topic, in_order("g", 3))
    store.receive(group, topic, 4)
    assert store.receive(group, topic) == []
    assert store.one_value("SELECT COUNT(*) FROM message_group_progress") > 0
    end(store, group, topic, ends_holds=True)
    for table in ("progress", "delivery", "message_group_progress", "message_group_start"):
        assert store.rows(f"SELECT * FROM {table}") == [], table
    assert store.one_value("SELECT COUNT(*) FROM dead_letter") == 2
    store.meet(group, topic)
    assert len(store.receive(group, topic)) == 5, "it begins as in a topic that it has never read"


def test_members_and_servers_are_told(store: OpenStore, group: Group, topic: Topic) -> None:
    end(store, group, topic)
    assert store.outdated == {Invalidation(SUBSCRIPTIONS, *group.name), Invalidation(RESETS, *group.name)}


def test_of_pauses_they_are_told_if_there_was_one(store: OpenStore, group: Group, topic: Topic) -> None:
    other = store.topic("other")
    for each in ([topic], [other], []):
        store.one(pause.set_pause, SetPause(group, each, None, "ops"))
    end(store, group, topic)
    assert Invalidation(PAUSES, *group.name) in store.outdated
    assert store.rows("SELECT topic_id FROM pause ORDER BY topic_id") == [(0,), (other.topic_id,)]


@pytest.mark.parametrize("holder", [Holder.PUSH, Holder.SIMPLE])
def test_a_hold_is_in_its_way_until_it_ends(store: OpenStore, group: Group, topic: Topic, holder: Holder) -> None:
    store.send(topic)
    (held,) = store.receive(group, topic, holder=holder, invisible_ms=10 * SECOND, client_id="far")
    refusal = refused(store, group, topic)
    assert isinstance(refusal, BadRequest)
    assert "client 'far' holds a message of topic 'orders' for consumer group 'billing' until" in refusal.sentence
    assert "(in 10 s)" in refusal.sentence
    store.now_ms += 10 * SECOND
    end(store, group, topic)
    assert store.ack(group, held) != [None]


def test_other_holds_are_not_in_its_way(store: OpenStore, group: Group, topic: Topic) -> None:
    other = store.topic("other")
    neighbour = store.group("neighbour", meets=[topic])
    store.meet(group, other)
    store.send(topic)
    store.send(other)
    assert len(store.receive(neighbour, topic)) == len(store.receive(group, other)) == 1
    (waits,) = store.receive(group, topic, holder=Holder.PUSH)
    store.change(group, waits, HOUR)
    end(store, group, topic)
    assert store.one_value("SELECT COUNT(*) FROM delivery") == 2


def test_of_several_requests_each_has_its_own_outcome(store: OpenStore, group: Group, topic: Topic) -> None:
    other = store.group("other", meets=[topic])
    store.send(topic)
    store.receive(other, topic)
    requests = [Unsubscribe(each, topic, ends_holds=False) for each in (other, group, group)]
    outcomes = store.do(unsubscribe.unsubscribe, *requests)
    assert [type(each) for each in outcomes] == [BadRequest, type(None), NotFound]
    assert store.rows("SELECT DISTINCT group_id FROM progress") == [(other.group_id,)]


def test_a_topic_that_the_group_does_not_consume(store: OpenStore, group: Group) -> None:
    refusal = refused(store, group, store.topic("unread"))
    assert isinstance(refusal, NotFound)
    assert "consumer group 'billing' does not consume topic 'unread'" in refusal.sentence


def test_a_group_that_is_gone(store: OpenStore, group: Group, topic: Topic) -> None:
    leaving = store.group("leaving", meets=[topic])
    store.one(groups.delete_group, groups.DeleteGroup(leaving.name))
    assert isinstance(refused(store, leaving, topic), ConsumerGroupNotFound)
    store.conn.execute(delete(schema.consumer_group).where(schema.consumer_group.c.group_id == leaving.group_id))
    store.conn.commit()
    assert isinstance(refused(store, leaving, topic), ConsumerGroupNotFound)


@pytest.mark.parametrize("queue", [0, 1])
def test_what_a_users_transaction_acks_is_not_taken_away(
    store: OpenStore, group: Group, topic: Topic, queue: int
) -> None:
    if store.database.is_sqlite:
        pytest.skip("SQLite has one writer")
    for number in (0, 1):
        store.send(topic, 2, queue=number)
    assert len(store.receive(group, topic)) == 4
    with store.database.connect_writer() as other:
        store.database.begin(other)
        first = topic.queues[queue].queue_id << 40
        other.execute(text("SELECT 1 FROM delivery WHERE message_key = :key FOR UPDATE"), {"key": first + 1})
        refusal = refused(store, group, topic, ends_holds=True)
        assert isinstance(refusal, TooManyRequests)
        assert "nothing is deleted, repeat the request" in refusal.sentence
        other.exec_driver_sql("ROLLBACK")
    end(store, group, topic, ends_holds=True)
    store.meet(group, topic)
    assert sorted(offsets_of(store.receive(group, topic))) == [0, 0, 1, 1]
