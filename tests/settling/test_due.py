"""What falls due: the ends of holds and of intervals."""

from __future__ import annotations

import pytest
from sqlalchemy import delete, text

from popserver.database import schema
from popserver.engine.transaction import Transaction
from popserver.model.group import HistoryLevel
from popserver.model.retry import RETRY_LADDER_MS, Exponential, Holder
from popserver.model.states import Event, State
from popserver.model.topic import MessageType
from popserver.settling import expire
from tests.support.open_store import HOUR, SECOND, START_MS, OpenStore, ids, receipt_of
from tests.support.plans import Plans

HOLD_MS = 30 * SECOND


def test_nothing_is_due_where_nothing_is_held(store: OpenStore) -> None:
    assert store.one(expire.end_due, expire.EndDue()).next_due_ms is None


@pytest.mark.row("L9")
@pytest.mark.row("L18")
def test_a_simple_hold_ends_exactly_at_its_windows_end(store: OpenStore) -> None:
    """Received for 30 s, failed at 10: Ready again at 30, whatever the moment of failure."""
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    store.receive(group, topic, invisible_ms=HOLD_MS)
    assert store.end_due(after_ms=HOLD_MS - 1) == 0
    assert store.one(expire.end_due, expire.EndDue()).next_due_ms == START_MS + HOLD_MS
    assert store.end_due(after_ms=1) == 1
    assert set(store.states(group).values()) == {State.READY}
    assert [each.attempt for each in store.receive(group, topic)] == [2]


@pytest.mark.row("L7")
def test_a_push_hold_that_ends_waits_for_the_exponential_interval(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic], intervals_ms=Exponential(2 * SECOND, 5 * SECOND, 2), max_attempts=4)
    store.send(topic)
    for attempt, waits_ms in ((1, 2 * SECOND), (2, 4 * SECOND), (3, 5 * SECOND)):
        (held,) = store.receive(group, topic, holder=Holder.PUSH, invisible_ms=HOLD_MS)
        assert held.attempt == attempt
        store.end_due(after_ms=HOLD_MS)
        assert set(store.states(group).values()) == {State.WAITING_RETRY}
        assert store.end_due(after_ms=waits_ms - 1) == 0
        assert store.end_due(after_ms=1) == 1
    store.receive(group, topic, holder=Holder.PUSH, invisible_ms=HOLD_MS)
    store.end_due(after_ms=HOLD_MS)
    assert set(store.states(group).values()) == {State.DLQ}


def test_ending_a_hold_rings_its_topic(store: OpenStore) -> None:
    topic, other = store.topic("one"), store.topic("other")
    group = store.group(meets=[topic, other])
    for each in (topic, other):
        store.send(each)
        store.receive(group, each, invisible_ms=SECOND if each is topic else HOUR)
    store.now_ms += SECOND
    assert store.one(expire.end_due, expire.EndDue()).next_due_ms == START_MS + HOUR
    assert store.rings == {topic.topic_id}


@pytest.mark.row("L17")
@pytest.mark.row("L18")
@pytest.mark.parametrize("late_ms", [0, 5 * SECOND])
def test_a_push_hold_climbs_the_ladder_from_the_moment_it_ended(store: OpenStore, late_ms: int) -> None:
    """Not from the moment somebody looked."""
    topic = store.topic()
    group = store.group(meets=[topic], intervals_ms=[10 * SECOND, 20 * SECOND])
    store.send(topic)
    for attempt, interval_ms in enumerate([10 * SECOND, 20 * SECOND, 20 * SECOND], start=1):
        received_ms = store.now_ms
        (held,) = store.receive(group, topic, holder=Holder.PUSH, invisible_ms=HOLD_MS)
        assert held.attempt == attempt
        store.now_ms += HOLD_MS + late_ms
        ended = store.one(expire.end_due, expire.EndDue())
        assert ended.next_due_ms == received_ms + HOLD_MS + interval_ms
        row = store.delivery_of(group, receipt_of(held).message_key)
        assert (row.state, row.visible_at_ms) == (State.WAITING_RETRY, ended.next_due_ms)
        assert store.rings == set(), "nobody can take it yet"
        store.now_ms = ended.next_due_ms
        assert store.end_due() == 1


def test_a_retry_long_overdue_is_ready_at_once(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    store.receive(group, topic, holder=Holder.PUSH, invisible_ms=HOLD_MS)
    assert store.end_due(after_ms=HOUR) == 2
    assert [each.attempt for each in store.receive(group, topic)] == [2]


@pytest.mark.row("L7")
@pytest.mark.row("L12")
@pytest.mark.parametrize("holder", [Holder.PUSH, Holder.SIMPLE])
def test_three_retries_are_four_deliveries(store: OpenStore, holder: Holder) -> None:
    topic = store.topic()
    group = store.group(meets=[topic], max_attempts=4)
    (sent,) = store.send(topic)
    attempts = []
    while granted := store.receive(group, topic, holder=holder, invisible_ms=HOLD_MS):
        attempts += [each.attempt for each in granted]
        store.end_due(after_ms=2 * HOUR + HOLD_MS)
    assert attempts == [1, 2, 3, 4]
    assert store.state(group, sent.message_id) is State.DLQ
    assert store.end_due(after_ms=100 * HOUR) == 0


@pytest.mark.row("L5")
def test_the_whole_ladder_of_a_push_consumer(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    waited_ms = []
    while granted := store.receive(group, topic, holder=Holder.PUSH, invisible_ms=HOLD_MS):
        store.now_ms = granted[0].visible_at_ms
        next_due_ms = store.one(expire.end_due, expire.EndDue()).next_due_ms
        if next_due_ms is not None:
            waited_ms.append(next_due_ms - store.now_ms)
            store.now_ms = next_due_ms
            store.end_due()
    assert tuple(waited_ms) == RETRY_LADDER_MS


def test_one_step_ends_many_groups_and_events(store: OpenStore) -> None:
    topic = store.topic()
    simple = store.group("simple", meets=[topic], history=HistoryLevel.ALL)
    push = store.group("push", meets=[topic], history=HistoryLevel.ALL)
    last = store.group("last", meets=[topic], max_attempts=1, history=HistoryLevel.ALL)
    store.send(topic, 3)
    for group, holder in ((simple, Holder.SIMPLE), (push, Holder.PUSH), (last, Holder.SIMPLE)):
        store.receive(group, topic, holder=holder, invisible_ms=HOLD_MS)
    store.now_ms += HOLD_MS
    assert store.due_now() == 9
    store.one(expire.end_due, expire.EndDue())
    assert store.due_now() == 0
    assert [{step[0] for step in store.history(group)} - {Event.RECEIVE} for group in (simple, push, last)] == [
        {Event.RELEASE},
        {Event.RETRY},
        {Event.EXHAUST},
    ]


def test_holds_of_a_group_that_is_gone_are_removed_and_hinder_nobody(store: OpenStore) -> None:
    topic = store.topic(accepts=(MessageType.FIFO,))
    gone, stays = store.group("gone", meets=[topic]), store.group("stays", meets=[topic])
    store.send(topic, message_group="g", message_type=MessageType.FIFO)
    for group in (gone, stays):
        store.receive(group, topic, invisible_ms=HOLD_MS)
    store.conn.execute(delete(schema.consumer_group).where(schema.consumer_group.c.group_id == gone.group_id))
    store.conn.commit()
    assert store.end_due(after_ms=HOLD_MS) == 2
    assert store.one_value("SELECT COUNT(*) FROM delivery WHERE group_id = :gone", gone=gone.group_id) == 0
    assert set(store.states(stays).values()) == {State.READY}


def test_a_step_takes_a_thousand(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 1_001)
    store.receive(group, topic, 1_001, invisible_ms=HOLD_MS)
    store.now_ms += HOLD_MS
    assert store.one(expire.end_due, expire.EndDue()).next_due_ms == START_MS + HOLD_MS
    assert store.due_now() == 1
    assert store.one(expire.end_due, expire.EndDue()).next_due_ms is None


def test_the_earliest_is_ended_first(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 2)
    late, early = (store.receive(group, topic, 1, invisible_ms=ms)[0] for ms in (2 * SECOND, SECOND))
    assert store.end_due(after_ms=SECOND) == 1
    assert ids(store.receive(group, topic)) == ids([early])
    assert store.end_due(after_ms=SECOND) == 1
    assert ids(store.receive(group, topic)) == ids([late])


def test_several_requests_need_one_step(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    store.receive(group, topic, invisible_ms=SECOND)
    store.now_ms += SECOND
    first, second = store.do(expire.end_due, expire.EndDue(), expire.EndDue())
    assert first == expire.EndedHolds(None, {(1, 1): 1})
    assert second == expire.EndedHolds(None)


@pytest.mark.parametrize(
    ("due_ms", "again_ms"),
    [(0, 20), (START_MS, 20), (START_MS - 100, 50), (START_MS - 101, 50), (START_MS - HOUR, 1_000)],
)
def test_what_another_has_in_its_hands_is_looked_at_again(due_ms: int, again_ms: int) -> None:
    """An ack in its consumer's own transaction is due at 0: that does not make it an old one."""
    for later_ms in ([], [START_MS + 60 * SECOND]):
        look = expire._DueNow([], [START_MS, due_ms], later_ms)
        assert expire._when_to_check_again(START_MS, look) == START_MS + again_ms
    assert expire._when_to_check_again(START_MS, expire._DueNow([], [due_ms], [START_MS + 1])) == START_MS + 1


def test_in_a_place_that_another_server_has_nothing_is_locked(store: OpenStore) -> None:
    """It would pass over its own deliveries."""
    if store.database.is_sqlite:
        pytest.skip("SQLite has one writer")
    topic = store.topic(accepts=(MessageType.FIFO,))
    group = store.group(meets=[topic])
    store.send(topic, message_group="g", message_type=MessageType.FIFO)
    store.receive(group, topic, invisible_ms=SECOND)
    other = store.database.connect_writer()
    store.database.begin(other)
    other.execute(text("SELECT 1 FROM progress FOR UPDATE"))
    store.database.begin(store.conn)
    expire.end_due(Transaction.at(store.conn, store.now_ms + SECOND), [expire.EndDue()])
    assert other.execute(text("SELECT 1 FROM delivery FOR UPDATE SKIP LOCKED")).all() == [(1,)]
    for each in (other, store.conn):
        each.exec_driver_sql("ROLLBACK")
    other.close()


def test_what_another_server_has_locked_is_due_again_soon(store: OpenStore) -> None:
    if store.database.is_sqlite:
        pytest.skip("SQLite has one writer")
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    store.receive(group, topic, invisible_ms=SECOND)
    with store.database.connect_writer() as other:
        store.database.begin(other)
        other.execute(text("SELECT 1 FROM delivery FOR UPDATE"))
        store.now_ms += SECOND
        assert store.one(expire.end_due, expire.EndDue()) == expire.EndedHolds(store.now_ms + 20)
        other.exec_driver_sql("ROLLBACK")


def test_what_others_have_locked_does_not_hide_what_is_free(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is more than a step."""
    if store.database.is_sqlite:
        pytest.skip("SQLite has one writer")
    monkeypatch.setattr(expire, "STEP_ROWS_MAX", 2)
    topic = store.topic(queues=1)
    group = store.group(meets=[topic])
    store.send(topic, 8)
    store.receive(group, topic, 7, invisible_ms=SECOND)
    (last,) = store.receive(group, topic, 1, invisible_ms=2 * SECOND)
    other = store.database.connect_writer()
    store.database.begin(other)
    free = receipt_of(last).message_key
    other.execute(text("SELECT 1 FROM delivery WHERE message_key < :free FOR UPDATE"), {"free": free})
    store.now_ms += 2 * SECOND
    assert store.one(expire.end_due, expire.EndDue()).requeued == {(group.group_id, topic.topic_id): 1}
    assert store.delivery_of(group, free).state == State.READY
    other.exec_driver_sql("ROLLBACK")
    other.close()
    store.end_due()
    assert set(store.states(group).values()) == {State.READY}


def test_a_step_looks_once(store: OpenStore) -> None:
    """Beside a transaction that stays open each look reads what has ended since a moment ago."""
    topic = store.topic(accepts=(MessageType.NORMAL, MessageType.FIFO))
    group = store.group(meets=[topic])
    store.send(topic, 2)
    store.receive(group, topic, invisible_ms=SECOND)
    plans = Plans(store)
    with plans.caught():
        assert store.one(expire.end_due, expire.EndDue()).requeued == {}
    assert len(plans.explained()) == 1
