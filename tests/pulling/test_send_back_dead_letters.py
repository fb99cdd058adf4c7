"""The end of a message that members hand back: a dead letter of its first place, once per group."""

from __future__ import annotations

import pytest

from popserver.catalog import topics
from popserver.model.errors import BadRequest
from popserver.model.message import Message
from popserver.model.retry import (
    DELAY_LEVELS_MS,
    RETRY_LADDER_MS,
    RetryPolicy,
    check_delay_level,
    handed_back_interval_ms,
    when_handed_back,
)
from popserver.model.states import Event, State
from popserver.model.topic import Topic, message_key
from popserver.pulling.send_back import send_back
from tests.support.builders import a_message
from tests.support.open_store import HOUR, MINUTE, SECOND, OpenStore
from tests.support.send_back import (
    a_failure,
    commit,
    dead,
    fail_again,
    hand_back,
    letters,
    pull_group,
    reset,
    retries_of,
)


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    return store.topic()


@pytest.fixture
def sent(store: OpenStore, topic: Topic) -> Message:
    message = a_message(topic.name, tag="A", properties={"from": "JFK"})
    store.send(topic, [message])
    return message


@pytest.mark.row("E16")
def test_the_seventeenth_failure_is_the_last(store: OpenStore, topic: Topic, sent: Message) -> None:
    group = pull_group(store)
    outcomes = [hand_back(store, group, topic), *(fail_again(store, group) for _ in range(16))]
    assert outcomes == [False] * 16 + [True]
    (row,) = letters(store)
    assert (row.topic, row.queue_id, row.queue_offset, row.delivery_attempt) == ("orders", 0, 0, 17)
    assert row.reason == "handed back, and no attempt remains"
    (copy,) = dead(store, group)
    assert copy.message == sent._replace(topic=copy.message.topic), "as it was sent, without the marks of its retries"
    assert copy.dead_letter_of == ("orders", sent.message_id)
    assert store.history(group)[-1] == ("EXHAUST", "INFLIGHT", "DLQ", 17)
    assert store.one_value("SELECT COUNT(*) FROM delivery") == 0
    commit(store, group, topic, 1)
    states = store.rows("SELECT topic, state FROM message_state WHERE topic = 'orders'")
    assert [row.state for row in states] == [State.DLQ]


@pytest.mark.row("E15")
@pytest.mark.parametrize(
    ("failures", "level", "most", "event", "wait_ms"),
    [
        (0, 0, None, Event.RETRY, 10 * SECOND),
        (1, 0, -1, Event.RETRY, 30 * SECOND),
        (15, 0, None, Event.RETRY, 2 * HOUR),
        (16, 0, None, Event.EXHAUST, None),
        (20, 0, 100, Event.RETRY, 2 * HOUR),
        (0, 1, None, Event.RETRY, SECOND),
        (9, 3, None, Event.RETRY, 10 * SECOND),
        (9, 18, None, Event.RETRY, 2 * HOUR),
        (16, 1, None, Event.EXHAUST, None),
        (0, -1, None, Event.FORWARD_TO_DLQ, None),
        (99, -7, 3, Event.FORWARD_TO_DLQ, None),
        (0, 0, 0, Event.EXHAUST, None),
        (2, 0, 3, Event.RETRY, MINUTE),
        (3, 0, 3, Event.EXHAUST, None),
    ],
)
def test_what_a_failure_means(failures: int, level: int, most: int | None, event: Event, wait_ms: int | None) -> None:
    policy = RetryPolicy()
    assert when_handed_back(failures, level, policy, most) is event
    if wait_ms is not None:
        assert handed_back_interval_ms(failures, level, policy) == wait_ms


@pytest.mark.row("E15")
def test_the_ladder_is_the_delay_table_from_its_third_level_on() -> None:
    assert len(DELAY_LEVELS_MS) == 18
    assert DELAY_LEVELS_MS[2:] == RETRY_LADDER_MS
    with pytest.raises(BadRequest, match="delay level 19 is above the highest, 18"):
        check_delay_level(19)


@pytest.mark.row("E15")
@pytest.mark.parametrize(("level", "wait_ms"), [(0, 10 * SECOND), (2, 5 * SECOND), (18, 2 * HOUR)])
def test_the_level_says_when_it_is_due(store: OpenStore, topic: Topic, sent: Message, level: int, wait_ms: int) -> None:
    group = pull_group(store)
    assert hand_back(store, group, topic, 0, level) is False
    assert store.due_ms == store.now_ms + wait_ms


@pytest.mark.row("E15")
def test_a_negative_level_gives_it_up(store: OpenStore, topic: Topic, sent: Message) -> None:
    group = pull_group(store)
    assert hand_back(store, group, topic, 0, -1) is True
    (row,) = letters(store)
    assert (row.delivery_attempt, row.reason) == (1, "forwarded by its consumer")
    assert store.history(group) == [("FORWARD_TO_DLQ", "INFLIGHT", "DLQ", 1)]


def test_the_group_may_have_other_limits(store: OpenStore, topic: Topic, sent: Message) -> None:
    group = pull_group(store, max_attempts=2, intervals_ms=[MINUTE])
    assert hand_back(store, group, topic) is False
    assert store.due_ms == store.now_ms + MINUTE
    assert fail_again(store, group) is True


def test_it_dies_in_each_group_alone(store: OpenStore, topic: Topic, sent: Message) -> None:
    one, other = pull_group(store, "one"), pull_group(store, "other")
    assert [hand_back(store, each, topic, 0, -1) for each in (one, other)] == [True, True]
    assert [row.consumer_group for row in letters(store)] == ["one", "other"]


class TestASecondDeath:
    """After a reset: a new row, for the same copy."""

    def test_of_a_group_that_owns_queues(self, store: OpenStore, topic: Topic, sent: Message) -> None:
        group = pull_group(store, max_attempts=2)
        hand_back(store, group, topic)
        fail_again(store, group)
        commit(store, group, topic, 1)
        (before,) = letters(store)
        reset(store, group, topic)
        assert hand_back(store, group, topic) is False
        assert fail_again(store, group, delay_level=-1) is True
        (after,) = letters(store)
        assert (after.copy_key, after.redrive_state) == (before.copy_key, None)
        assert after.id > before.id, "who reads on by ids sees it again"
        assert (after.dead_at_ms, after.reason) == (store.now_ms, "forwarded by its consumer")
        assert after.dead_at_ms > before.dead_at_ms
        assert len(dead(store, group)) == 1

    def test_of_a_group_that_consumes_message_by_message(self, store: OpenStore, topic: Topic, sent: Message) -> None:
        group = store.group("popping", meets=[topic], max_attempts=1)
        store.receive(group, topic, invisible_ms=MINUTE)
        store.end_due(after_ms=MINUTE)
        reset(store, group, topic)
        assert store.state(group, sent.message_id) is State.READY
        (held,) = store.receive(group, topic, invisible_ms=MINUTE)
        store.check()
        assert store.forward(group, held) is None
        (row,) = letters(store)
        assert (row.reason, row.dead_at_ms, row.redrive_state) == (
            "forwarded by its consumer",
            store.now_ms,
            None,
        )
        assert len(dead(store, group)) == 1
        assert store.state(group, sent.message_id) is State.DLQ

    def test_beside_a_first_one(self, store: OpenStore, topic: Topic, sent: Message) -> None:
        group = pull_group(store)
        hand_back(store, group, topic, 0, -1)
        commit(store, group, topic, 1)
        reset(store, group, topic)
        store.send(topic)
        wishes = [a_failure(group, topic, each, -1) for each in (0, 1)]
        assert list(store.do(send_back, *wishes)) == [True, True]
        assert [row.queue_offset for row in letters(store)] == [0, 1]
        assert len(dead(store, group)) == 2


def test_it_outlives_the_topic_it_comes_from(store: OpenStore) -> None:
    store.topic("another")  # has the smallest id, and no part in it
    topic, group = store.topic(), pull_group(store)
    store.send(topic)
    hand_back(store, group, topic)
    store.end_due(after_ms=MINUTE)
    store.one(topics.delete_topic, topics.DeleteTopic(topic.name))
    store.purge()
    assert hand_back(store, group, retries_of(store, group), 0, -1) is True
    (row,) = letters(store)
    assert (row.topic, row.origin_key) == (None, message_key(topic.queues[0].queue_id, 0))


def test_a_dead_letter_may_be_worked_on_and_fail(store: OpenStore, topic: Topic, sent: Message) -> None:
    group, worker = pull_group(store), pull_group(store, "worker", max_attempts=2)
    hand_back(store, group, topic, 0, -1)
    place = topics.find_topic(store.conn, dead(store, group)[0].message.topic)
    assert place is not None
    assert hand_back(store, worker, place) is False
    assert fail_again(store, worker) is True
    assert [(row.consumer_group, row.topic) for row in letters(store)] == [
        ("billing", "orders"),
        ("worker", "%DLQ%billing"),
    ]
