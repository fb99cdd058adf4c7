"""INFLIGHT → WAITING_RETRY → READY of a group that owns whole queues: the row, then the copy, each exactly once."""

from __future__ import annotations

import pytest

from popserver.catalog import groups, topics
from popserver.delivery import due
from popserver.engine import transaction
from popserver.maintenance import retention
from popserver.model.errors import BadRequest, ConsumerGroupNotFound, MessageNotFound
from popserver.model.group import Group, HistoryLevel, Mode
from popserver.model.message import Message
from popserver.model.names import Resource, retry_topic
from popserver.model.retry import Holder
from popserver.model.states import State
from popserver.model.topic import MessageType, Topic, message_key
from popserver.progress import lag
from popserver.pulling import send_back
from popserver.settling import expire
from tests.support.builders import a_message, in_order
from tests.support.open_store import HOUR, MINUTE, SECOND, START_MS, OpenStore
from tests.support.plans import Plans
from tests.support.pulls import look, offsets
from tests.support.send_back import (
    a_failure,
    commit,
    fail_again,
    hand_back,
    letters,
    pull_group,
    reset,
    retries,
    retries_of,
)


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    return store.topic(Resource("shop", "orders"))


@pytest.fixture
def group(store: OpenStore) -> Group:
    return pull_group(store, Resource("shop", "billing"), max_attempts=3)


@pytest.fixture
def sent(store: OpenStore, topic: Topic) -> Message:
    """A message with everything on it."""
    message = a_message(
        topic.name, tag="A", keys=("k1", "k2"), properties={"from": "Malmö"}, born_at_ms=5, body=b"the body"
    )
    store.send(topic, [message])
    return message


@pytest.mark.row("L3")
def test_it_waits_as_any_retry(store: OpenStore, topic: Topic, group: Group, sent: Message) -> None:
    assert hand_back(store, group, topic) is False
    row = store.delivery_of(group, message_key(topic.queues[0].queue_id, 0))
    assert (row.state, row.attempt, row.holder, row.client_id) == (State.WAITING_RETRY, 1, Holder.PUSH, "c1")
    assert row.message_group is None
    assert row.visible_at_ms == store.due_ms == store.now_ms + 10 * SECOND
    commit(store, group, topic, 1)
    assert store.state(group, sent.message_id) is State.WAITING_RETRY
    assert (store.lag(group).waiting_retry, store.lag(group).ready) == (1, 0)
    assert store.history(group) == [("RETRY", "INFLIGHT", "WAITING_RETRY", 1)]


@pytest.mark.row("E14")
def test_when_it_is_due_a_copy_stands_for_it(store: OpenStore, topic: Topic, group: Group, sent: Message) -> None:
    hand_back(store, group, topic)
    store.end_due(after_ms=10 * SECOND - 1)
    assert retries(store, group) == []
    assert store.end_due(after_ms=1) == 1
    place = retries_of(store, group)
    assert (place.name, len(place.queues)) == (Resource("shop", "%RETRY%billing"), 1)
    assert store.rings == {place.topic_id} or store.rung == {topic.topic_id, place.topic_id}
    (copy,) = retries(store, group)
    marks = {
        "RETRY_TOPIC": "orders",
        "RECONSUME_TIME": "1",
        "popmq.origin-key": str(message_key(topic.queues[0].queue_id, 0)),
        "popmq.parent-resets": "0",
    }
    assert copy.message == sent._replace(topic=place.name, properties={"from": "Malmö", **marks})
    assert (copy.offset, copy.stored_at_ms, copy.dead_letter_of) == (0, store.now_ms, None)
    assert store.delivery_of(group, message_key(topic.queues[0].queue_id, 0)) is None
    assert store.history(group)[-1] == ("BACKOFF_ELAPSED", "WAITING_RETRY", "READY", 1)


def test_what_can_be_handed_back_is_what_is_stored(store: OpenStore, topic: Topic, group: Group) -> None:
    store.send(topic, 2)
    for offset in (2, 7, 1 << 39):
        refusal = hand_back(store, group, topic, offset)
        assert isinstance(refusal, MessageNotFound)
        assert f"queue 0 of topic 'shop/orders' stores no message at offset {offset}" in refusal.sentence
    assert store.one_value("SELECT COUNT(*) FROM delivery") == 0


def test_groups_that_may_not_are_named(store: OpenStore, topic: Topic, group: Group, sent: Message) -> None:
    popping, leaving = store.group("popping", meets=[topic]), pull_group(store, "leaving")
    store.one(groups.delete_group, groups.DeleteGroup(leaving.name))
    refused, gone, done = store.do(send_back.send_back, *(a_failure(each, topic) for each in (popping, leaving, group)))
    assert isinstance(refused, BadRequest)
    assert "'popping' consumes in mode POP" in refused.sentence
    assert isinstance(gone, ConsumerGroupNotFound)
    assert done is False


class TestRepeated:
    """Handing the same message back again answers alike and changes nothing."""

    def test_while_it_waits(self, store: OpenStore, topic: Topic, group: Group, sent: Message) -> None:
        hand_back(store, group, topic)
        before = store.digest()
        store.now_ms += SECOND
        assert hand_back(store, group, topic, delay_level=5) is False
        assert hand_back(store, group, topic, delay_level=-1) is False
        assert store.digest() == before

    def test_once_its_copy_is_there(self, store: OpenStore, topic: Topic, group: Group, sent: Message) -> None:
        hand_back(store, group, topic)
        store.end_due(after_ms=MINUTE)
        commit(store, group, topic, 1)
        commit(store, group, retries_of(store, group), 1)
        before = store.digest()
        assert hand_back(store, group, topic) is False
        assert hand_back(store, group, topic, delay_level=-1) is False
        assert store.digest() == before

    def test_though_nothing_is_committed(self, store: OpenStore, topic: Topic, group: Group, sent: Message) -> None:
        hand_back(store, group, topic)
        store.end_due(after_ms=MINUTE)
        before = store.digest()
        assert hand_back(store, group, topic) is False
        assert store.digest() == before

    def test_when_it_is_a_dead_letter(self, store: OpenStore, topic: Topic, group: Group, sent: Message) -> None:
        assert hand_back(store, group, topic, delay_level=-1) is True
        before = store.digest()
        store.now_ms += SECOND
        assert hand_back(store, group, topic) is True
        assert hand_back(store, group, topic, delay_level=-1) is True
        assert store.digest() == before

    def test_when_one_of_its_retries_has_died(
        self, store: OpenStore, topic: Topic, group: Group, sent: Message
    ) -> None:
        hand_back(store, group, topic)
        assert fail_again(store, group, delay_level=-1) is True
        before = store.digest()
        assert hand_back(store, group, topic) is True
        assert hand_back(store, group, retries_of(store, group), 0) is True
        assert store.digest() == before

    def test_in_one_batch(self, store: OpenStore, topic: Topic, group: Group, sent: Message) -> None:
        other = pull_group(store, "other")
        wishes = [a_failure(each, topic, 0, level) for each in (group, other, group) for level in (0, -1)]
        assert list(store.do(send_back.send_back, *wishes)) == [False, False, False, False, False, False]
        assert store.one_value("SELECT COUNT(*) FROM delivery") == 2
        assert letters(store) == []


class TestAfterAReset:
    """What an operator lets a group read again, may fail again."""

    def test_it_comes_again_once_more(self, store: OpenStore, topic: Topic, group: Group, sent: Message) -> None:
        hand_back(store, group, topic)
        store.end_due(after_ms=MINUTE)
        commit(store, group, topic, 1)
        commit(store, group, retries_of(store, group), 1)
        reset(store, group, topic)
        assert hand_back(store, group, topic) is False
        assert store.one_value("SELECT COUNT(*) FROM delivery") == 1
        store.check()
        store.end_due(after_ms=MINUTE)
        first, second = retries(store, group)
        assert first.message.message_id == second.message.message_id == sent.message_id
        assert second.message.properties["popmq.parent-resets"] == "1"
        before = store.digest()
        assert hand_back(store, group, topic) is False
        assert store.digest() == before

    def test_the_old_retry_may_still_fail(self, store: OpenStore, topic: Topic, group: Group, sent: Message) -> None:
        hand_back(store, group, topic)
        store.end_due(after_ms=MINUTE)
        commit(store, group, topic, 1)
        reset(store, group, topic)
        hand_back(store, group, topic)
        store.end_due(after_ms=MINUTE)
        assert hand_back(store, group, retries_of(store, group), 0) is False
        assert hand_back(store, group, retries_of(store, group), 1) is False
        store.end_due(after_ms=HOUR)
        assert [each.message.properties["RECONSUME_TIME"] for each in retries(store, group)] == ["1", "1", "2", "2"]

    def test_only_what_it_lets_this_group_read_again(self, store: OpenStore, topic: Topic, group: Group) -> None:
        elsewhere, neighbour = store.topic("elsewhere"), pull_group(store, "neighbour")
        for each in (topic, elsewhere):
            store.send(each)
            hand_back(store, group, each)
        store.end_due(after_ms=MINUTE)
        commit(store, group, topic, 1)
        reset(store, group, topic)
        commit(store, neighbour, elsewhere, 1)
        reset(store, neighbour, elsewhere)
        wishes = [a_failure(group, each) for each in (topic, elsewhere)]
        assert list(store.do(send_back.send_back, *wishes)) == [False, False]
        waiting = store.rows("SELECT message_key FROM delivery")
        assert [row.message_key for row in waiting] == [message_key(topic.queues[0].queue_id, 0)]

    def test_what_waited_waits_no_more(self, store: OpenStore, topic: Topic, group: Group, sent: Message) -> None:
        commit(store, group, topic, 1)
        hand_back(store, group, topic)
        reset(store, group, topic)
        assert store.end_due(after_ms=HOUR) == 0
        assert hand_back(store, group, topic) is False


@pytest.mark.row("E14")
def test_a_retry_of_a_retry_names_the_first_place(store: OpenStore, topic: Topic, group: Group, sent: Message) -> None:
    hand_back(store, group, topic)
    assert fail_again(store, group) is False
    store.end_due(after_ms=SECOND)
    first, second = retries(store, group)
    assert second.message.properties == {**first.message.properties, "RECONSUME_TIME": "2"}
    origins = store.rows("SELECT copy_of FROM message WHERE copy_kind = 'RETRY' ORDER BY message_key")
    assert [row.copy_of for row in origins] == [message_key(topic.queues[0].queue_id, 0), first.message_key]


def test_a_retry_of_another_group_is_no_retry_of_this_one(store: OpenStore, topic: Topic, group: Group) -> None:
    store.send(topic, 2)
    other = pull_group(store, "other")
    hand_back(store, group, topic, 0)
    hand_back(store, other, topic, 1)
    store.end_due(after_ms=MINUTE)
    assert hand_back(store, group, topic, 1) is False
    assert store.delivery_of(group, message_key(topic.queues[0].queue_id, 1)).state == State.WAITING_RETRY


def test_of_a_message_group_it_comes_alone(store: OpenStore, group: Group) -> None:
    topic = store.topic("flights", accepts=(MessageType.FIFO,))
    store.send(topic, in_order("SK123", 2, topic.name))
    hand_back(store, group, topic)
    store.end_due(after_ms=MINUTE)
    (copy,) = retries(store, group)
    assert copy.message.message_group == "SK123"
    reader = store.group("reader", meets=[retries_of(store, group)])
    (held,) = store.receive(reader, retries_of(store, group))
    assert store.ack(reader, held) == [None]
    assert store.one_value("SELECT COUNT(*) FROM message_group_progress") == 0


def test_they_come_in_the_order_they_are_due(store: OpenStore, topic: Topic, group: Group) -> None:
    store.send(topic, 3)
    for offset, level in ((0, 3), (1, 1), (2, 2)):
        hand_back(store, group, topic, offset, level)
    store.end_due(after_ms=MINUTE)
    keys = [each.message.properties["popmq.origin-key"] for each in retries(store, group)]
    assert keys == [str(message_key(topic.queues[0].queue_id, offset)) for offset in (1, 2, 0)]


def test_many_cost_as_many_statements_as_one(store: OpenStore, topic: Topic) -> None:
    group = pull_group(store, "wide", history=HistoryLevel.NONE)
    store.send(topic, 60)
    counts = []
    for wishes in ([0], range(1, 60)):
        plans = Plans(store)
        with plans.caught():
            store.do(send_back.send_back, *(a_failure(group, topic, each) for each in wishes))
        counts.append(plans.count)
    assert counts[1] <= counts[0] + 4, "rows are inserted in powers of two on SQLite"
    plans = Plans(store)
    store.now_ms += MINUTE
    with plans.caught():
        store.one(expire.end_due, expire.EndDue())
    assert plans.count < 20
    assert offsets(look(store, retries_of(store, group), batch_size=100)) == list(range(60))


def test_more_than_one_statement_may_touch(
    store: OpenStore, topic: Topic, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "STEP_ROWS_MAX", 2)
    monkeypatch.setattr(expire, "STEP_ROWS_MAX", 2)
    store.send(topic, 5)
    wishes = [a_failure(group, topic, each, -1 if each == 4 else 0) for each in (4, 2, 0, 3, 1)]
    assert list(store.do(send_back.send_back, *wishes)) == [True, False, False, False, False]
    store.now_ms += MINUTE
    for _ in range(2):
        assert due.next_due_ms(store.conn) is not None
        store.one(expire.end_due, expire.EndDue())
    assert due.next_due_ms(store.conn) is None
    assert len(retries(store, group)) == 4


def test_what_waits_is_not_removed_though_nothing_is_committed(store: OpenStore, topic: Topic) -> None:
    group = pull_group(store, history=HistoryLevel.NONE)
    store.send(topic, 3)
    hand_back(store, group, topic, 1, delay_level=18)
    assert store.one(retention.retain, retention.Retain(START_MS + 1)).removed == 1
    assert store.one(retention.retain, retention.Retain(START_MS + 1)).removed == 0
    store.end_due(after_ms=2 * HOUR)
    assert len(retries(store, group)) == 1
    assert store.one(retention.retain, retention.Retain(START_MS + 1)).removed == 2, "the copy is new"
    assert len(retries(store, group)) == 1


def test_a_topic_that_is_deleted_takes_what_waits_along(
    store: OpenStore, topic: Topic, group: Group, sent: Message
) -> None:
    hand_back(store, group, topic)
    store.one(topics.delete_topic, topics.DeleteTopic(topic.name))
    store.end_due(after_ms=MINUTE)
    assert retries(store, group) == []
    assert store.one_value("SELECT COUNT(*) FROM delivery") == 0
    store.purge()


def test_a_group_that_is_deleted_takes_its_retries_along(
    store: OpenStore, topic: Topic, group: Group, sent: Message
) -> None:
    store.send(topic)
    hand_back(store, group, topic)
    store.end_due(after_ms=MINUTE)
    hand_back(store, group, topic, 1)
    store.one(groups.delete_group, groups.DeleteGroup(group.name))
    store.end_due(after_ms=MINUTE)
    assert topics.find_topic(store.conn, retry_topic(group.name)) is None
    store.purge()
    assert store.one_value("SELECT COUNT(*) FROM delivery") == 0


def test_groups_of_either_mode_retry_side_by_side(store: OpenStore, topic: Topic, group: Group) -> None:
    popping = store.group("popping", meets=[topic])
    store.meet(popping, topic, Mode.POP)
    store.send(topic)
    (held,) = store.receive(popping, topic, holder=Holder.PUSH)
    store.change(popping, held, 10 * SECOND)
    hand_back(store, group, topic)
    store.end_due(after_ms=10 * SECOND)
    (again,) = store.receive(popping, topic)
    assert (again.attempt, len(retries(store, group))) == (2, 1)


def test_what_waits_beyond_what_is_committed_is_counted_once(store: OpenStore, topic: Topic, group: Group) -> None:
    store.send(topic, 4)
    commit(store, group, topic, 1)
    for offset in (0, 2):
        hand_back(store, group, topic, offset)
    assert (store.lag(group).ready, store.lag(group).waiting_retry) == (2, 2)
    (queue,), _ = lag.queue_lag(store.conn, group, None, store.now_ms, 10)
    assert (queue.ready, queue.waiting_retry) == (2, 2)
    commit(store, group, topic, 3)
    assert (store.lag(group).ready, store.lag(group).waiting_retry) == (1, 2)
