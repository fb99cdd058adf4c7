"""A change of one hold, for each kind of holder and wish: the new row, the step in the history, who is woken."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from popserver.model.errors import InvalidReceiptHandle
from popserver.model.group import Group, HistoryLevel
from popserver.model.handles import Receipt
from popserver.model.message import Delivery
from popserver.model.retry import FIFO_INTERVAL_MS, SUSPENDED, Holder
from popserver.model.states import State
from popserver.model.topic import MessageType, Topic, message_key
from popserver.settling import change
from popserver.settling.change import ChangeInvisible, Forward
from tests.support.builders import in_order
from tests.support.open_store import HOUR, MINUTE, SECOND, START_MS, OpenStore, receipt_of

LADDER_MS = (7 * SECOND, 9 * SECOND)
READY, HELD, WAITS = State.READY, State.INFLIGHT, State.WAITING_RETRY


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    store.topic("another")
    return store.topic(accepts=(MessageType.NORMAL, MessageType.FIFO))


def group_of(store: OpenStore, topic: Topic, max_attempts: int = 3) -> Group:
    store.group("another", meets=[topic])
    return store.group(meets=[topic], max_attempts=max_attempts, intervals_ms=LADDER_MS, history=HistoryLevel.ALL)


def held_for(
    store: OpenStore, group: Group, topic: Topic, holder: Holder, message_group: str | None = None, *, attempt: int = 1
) -> Delivery:
    """A message with this many attempts, and another one behind it."""
    store.send(topic, in_order("g") if message_group else 1)
    for _ in range(attempt - 1):
        store.receive(group, topic, invisible_ms=SECOND)
        store.end_due(after_ms=SECOND)
    (held,) = store.receive(group, topic, holder=holder, client_id="c7", invisible_ms=MINUTE)
    assert held.attempt == attempt
    store.send(topic, in_order("g") if message_group else 1)
    return held


def changed(store: OpenStore, group: Group, held: Delivery | Receipt, duration_ms: int, **more: Any) -> Receipt:
    return store.one(change.change_invisible, ChangeInvisible(group, receipt_of(held), duration_ms, **more))


def last_step(store: OpenStore) -> tuple[Any, ...]:
    columns = "at_ms, message_key, event, from_state, attempt, client_id, reason"
    return tuple(store.rows(f"SELECT {columns} FROM history ORDER BY history_id DESC LIMIT 1")[0])


class Wish(NamedTuple):
    """What is asked for, and what comes of it: state, attempt, uncounted ones, the wait, and the step."""

    holder: Holder
    message_group: str | None
    asked: dict[str, Any]
    state: State
    attempt: int
    uncounted: int
    wait_ms: int
    event: str
    reason: str = ""


SUSPEND, WHY = {"suspend": True}, {"reason": "no stock"}
BACK = {"give_back": True}
WISHES = [
    Wish(Holder.SIMPLE, None, {}, HELD, 2, 0, 5 * SECOND, "CHANGE_INVISIBLE"),
    Wish(Holder.SIMPLE, "g", WHY, HELD, 2, 0, 5 * SECOND, "CHANGE_INVISIBLE"),
    Wish(Holder.SIMPLE, "g", SUSPEND, HELD, 1, 1, 5 * SECOND, "CHANGE_INVISIBLE"),
    Wish(Holder.SIMPLE, None, BACK, READY, 1, 1, 0, "GIVE_BACK"),
    Wish(Holder.SIMPLE, "g", BACK | WHY, READY, 1, 1, 0, "GIVE_BACK"),
    Wish(Holder.PUSH, None, {}, WAITS, 2, 0, 5 * SECOND, "RETRY"),
    Wish(Holder.PUSH, None, WHY, WAITS, 2, 0, 5 * SECOND, "RETRY", "no stock"),
    Wish(Holder.PUSH, None, WHY | {"duration_ms": 0}, WAITS, 2, 0, LADDER_MS[1], "RETRY", "no stock"),
    Wish(Holder.PUSH, "g", {}, WAITS, 2, 0, FIFO_INTERVAL_MS, "RETRY"),
    Wish(Holder.PUSH, "g", {"duration_ms": 0}, WAITS, 2, 0, FIFO_INTERVAL_MS, "RETRY"),
    Wish(Holder.PUSH, "g", SUSPEND, WAITS, 1, 1, 5 * SECOND, "RETRY", SUSPENDED),
    Wish(Holder.PUSH, "g", SUSPEND | WHY, WAITS, 1, 1, 5 * SECOND, "RETRY", "no stock"),
    Wish(Holder.PUSH, "g", SUSPEND | {"duration_ms": 0}, WAITS, 1, 1, 0, "RETRY", SUSPENDED),
    Wish(Holder.PUSH, None, BACK, READY, 1, 1, 0, "GIVE_BACK"),
    Wish(Holder.PUSH, "g", BACK | WHY, READY, 1, 1, 0, "GIVE_BACK"),
]


@pytest.mark.parametrize("wish", WISHES)
def test_each_wish_of_each_holder(store: OpenStore, topic: Topic, wish: Wish) -> None:
    group = group_of(store, topic)
    held = held_for(store, group, topic, wish.holder, wish.message_group, attempt=2)
    store.now_ms += 3 * SECOND
    at_ms, key = store.now_ms, receipt_of(held).message_key
    new = changed(store, group, held, **({"duration_ms": 5 * SECOND} | wish.asked))
    row = store.delivery_of(group, key)
    assert (row.state, row.attempt, row.uncounted) == (wish.state, wish.attempt, wish.uncounted)
    assert (row.hold_id, row.visible_at_ms, row.client_id) == (new.hold_id, at_ms + wish.wait_ms, "c7")
    assert new == receipt_of(held)._replace(hold_id=row.hold_id, ends_at_ms=at_ms + wish.wait_ms)
    assert last_step(store) == (at_ms, key, wish.event, "INFLIGHT", 2, "c7", wish.reason)
    is_back = wish.state is READY
    assert store.rings == ({topic.topic_id} if is_back else set())
    assert store.due_ms == (None if is_back else at_ms + wish.wait_ms)
    again = [each.attempt for each in store.receive(group, topic) if receipt_of(each).message_key == key]
    assert again == ([2] if is_back else [])


@pytest.mark.parametrize("suspends", [0, 1, 2, 3])
def test_however_often_it_is_suspended_no_attempt_is_below_none(store: OpenStore, topic: Topic, suspends: int) -> None:
    group = group_of(store, topic)
    held: Delivery | Receipt = held_for(store, group, topic, Holder.SIMPLE, "g")
    for _ in range(suspends):
        held = changed(store, group, held, 5 * SECOND, suspend=True)
    row = store.delivery_of(group, receipt_of(held).message_key)
    assert (row.attempt, row.uncounted) == (0 if suspends else 1, suspends)


@pytest.mark.parametrize("suspend", [True, False])
@pytest.mark.parametrize("message_group", [None, "g"])
def test_the_last_attempt_of_a_push_consumer(
    store: OpenStore, topic: Topic, message_group: str | None, suspend: bool
) -> None:
    """To suspend is no failure."""
    group = group_of(store, topic, max_attempts=2)
    held = held_for(store, group, topic, Holder.PUSH, message_group, attempt=2)
    key = receipt_of(held).message_key
    done = changed(store, group, held, 5 * SECOND, suspend=suspend, reason="no stock")
    if suspend:
        row = store.delivery_of(group, key)
        assert (row.state, row.attempt, row.visible_at_ms) == (WAITS, 1, store.now_ms + 5 * SECOND)
        assert done.ends_at_ms == store.now_ms + 5 * SECOND
        return
    assert done == receipt_of(held)
    assert store.delivery_of(group, key) is None
    reason = "failed, and no attempt remains: no stock"
    assert last_step(store) == (store.now_ms, key, "EXHAUST", "INFLIGHT", 2, "c7", reason)
    (letter,) = store.rows("SELECT origin_key, origin_topic_id, attempt, reason, dead_at_ms FROM dead_letter")
    assert tuple(letter) == (key, topic.topic_id, 2, reason, store.now_ms)
    assert len(store.receive(group, topic)) == 1, "what is behind it goes on"


@pytest.mark.parametrize(("reason", "told"), [("", ""), ("no stock", ": no stock")])
@pytest.mark.parametrize("message_group", [None, "g"])
def test_a_message_that_is_given_up(
    store: OpenStore, topic: Topic, message_group: str | None, reason: str, told: str
) -> None:
    group = group_of(store, topic)
    held = held_for(store, group, topic, Holder.SIMPLE, message_group, attempt=2)
    key = receipt_of(held).message_key
    assert store.do(change.forward, Forward(group, receipt_of(held), reason)) == [None]
    why = f"forwarded by its consumer{told}"
    assert last_step(store) == (store.now_ms, key, "FORWARD_TO_DLQ", "INFLIGHT", 2, "c7", why)
    assert store.rows("SELECT origin_key, attempt, reason FROM dead_letter") == [(key, 2, why)]
    assert store.do(change.forward, Forward(group, receipt_of(held), "again")) == [None]
    assert store.rows("SELECT reason FROM dead_letter") == [(why,)]
    assert len(store.receive(group, topic)) == 1, "what is behind it goes on"


def test_twice_in_one_transaction_it_is_one_dead_letter(store: OpenStore, topic: Topic) -> None:
    group = group_of(store, topic)
    held = receipt_of(held_for(store, group, topic, Holder.SIMPLE))
    assert store.do(change.forward, Forward(group, held, "one"), Forward(group, held, "two")) == [None, None]
    assert store.rows("SELECT reason FROM dead_letter") == [("forwarded by its consumer: one",)]


class TestRepeated:
    def test_the_answer_is_the_one_before_whatever_the_time(self, store: OpenStore, topic: Topic) -> None:
        group = group_of(store, topic)
        held = held_for(store, group, topic, Holder.PUSH)
        first = changed(store, group, held, 5 * SECOND)
        store.now_ms += 2 * SECOND
        before = store.digest()
        assert changed(store, group, held, 5 * SECOND) == first
        assert store.digest() == before

    def test_not_after_the_message_was_acked_before_its_turn(self, store: OpenStore, topic: Topic) -> None:
        group = group_of(store, topic)
        store.send(topic, in_order("g", 2))
        _, second = store.receive(group, topic)
        newer = changed(store, group, second, MINUTE)
        assert store.ack(group, newer) == [None]
        with pytest.raises(InvalidReceiptHandle):
            changed(store, group, second, MINUTE)

    def test_not_in_another_group(self, store: OpenStore, topic: Topic) -> None:
        group = group_of(store, topic)
        held = held_for(store, group, topic, Holder.SIMPLE)
        changed(store, group, held, MINUTE)
        other = store.group("other", meets=[topic])
        with pytest.raises(InvalidReceiptHandle):
            changed(store, other, receipt_of(held)._replace(group_id=other.group_id), MINUTE)


def test_the_next_hold_follows_from_the_hold_and_the_duration(store: OpenStore) -> None:
    found = {(hold, ms): change._successor(hold, ms) for hold in (-1, 0, 1, 2**62) for ms in (-1, 0, 1, HOUR)}
    assert found == {of: change._successor(*of) for of in found}
    assert len(set(found.values())) == len(found)
    assert all(0 <= each < 2**63 for each in found.values())
    assert any(each >= 2**62 for each in found.values()), "all 63 bits are used"


def test_only_the_named_hold_changes(store: OpenStore, topic: Topic) -> None:
    group, other = group_of(store, topic), store.group("other", meets=[topic])
    store.send(topic, 3)
    mine, theirs = store.receive(group, topic), store.receive(other, topic)
    before = {each: tuple(store.delivery_of(each, message_key(topic.queues[0].queue_id, 1))) for each in (group, other)}
    changed(store, group, mine[0], HOUR)
    changed(store, other, theirs[2], 0, give_back=True)
    store.forward(group, mine[2])
    for each, row in before.items():
        assert tuple(store.delivery_of(each, message_key(topic.queues[0].queue_id, 1))) == row
    assert store.delivery_of(other, receipt_of(theirs[0]).message_key).visible_at_ms == START_MS + 30 * SECOND
    assert store.delivery_of(group, receipt_of(mine[2]).message_key) is None
