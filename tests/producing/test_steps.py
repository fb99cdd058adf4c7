"""Requests of one transaction share a step: the first is answered with all, the others hear when it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from popserver.engine.transaction import Transaction
from popserver.messages import read
from popserver.messages.pending_messages import PendingRow
from popserver.model.message import PROPERTY
from popserver.model.topic import Topic
from popserver.producing import enqueue, half_messages, pending
from popserver.producing.half_messages import ClaimChecks, ReturnChecks, claim_checks, return_checks
from popserver.producing.rules import CheckPolicy
from tests.support.open_store import MINUTE, SECOND, OpenStore
from tests.support.pending_store import a_delayed, a_half, ids_in, pend, take_checks

POLICY = CheckPolicy()


def claim(*topics: Topic) -> ClaimChecks:
    return ClaimChecks(frozenset(each.topic_id for each in topics), POLICY)


def test_the_first_of_several_claims_gets_the_checks_of_all_topics(store: OpenStore) -> None:
    topic, other, third = store.topic(), store.topic("other"), store.topic("third")
    for each in (topic, other, third):
        pend(store, each, a_half())
    store.now_ms += 6 * SECOND
    answers: Any = store.do(claim_checks, claim(topic), claim(other))
    first, second = answers
    assert sorted(each.topic_id for each in first.checks) == sorted([topic.topic_id, other.topic_id])
    next_ms = store.now_ms + 30 * SECOND
    assert (first.discarded, first.next_check_ms) == ([], next_ms)
    assert second == ([], [], next_ms)
    assert len(take_checks(store, third).checks) == 1


def test_claims_leave_alone_what_others_do_after_the_commit(store: OpenStore) -> None:
    topic, done = store.topic(), list[str]()

    def after_another(tx: Transaction, requests: Sequence[ClaimChecks]) -> Any:
        tx.after_commit.append(lambda: done.append("another"))
        return claim_checks(tx, requests)

    store.one(after_another, claim(topic))
    assert done == ["another"]


def test_several_returns_take_back_their_own_checks(store: OpenStore) -> None:
    topic = store.topic()
    pend(store, topic, *(a_half() for _ in range(4)))
    ids = [each.pending_id for each in take_checks(store, topic, after_ms=MINUTE).checks]
    assert [*store.do(return_checks, ReturnChecks(ids[:1]), ReturnChecks(ids[1:3]))] == [None, None]
    again = take_checks(store, topic)
    assert [(each.pending_id, each.checks_before) for each in again.checks] == [(each, 0) for each in ids[:3]]


def test_the_first_of_several_steps_is_told_what_has_entered(store: OpenStore) -> None:
    topic = store.topic()
    pend(store, topic, a_delayed(store, SECOND), a_delayed(store, SECOND), a_delayed(store, MINUTE))
    due_ms = store.now_ms + MINUTE
    store.now_ms += SECOND
    answers: Any = store.do(enqueue.enqueue_due, enqueue.EnqueueDue(), enqueue.EnqueueDue())
    first, second = answers
    assert (first.entered, first.next_due_ms, first.next_topic_id) == (2, due_ms, topic.topic_id)
    assert [bytes(row.message_id).hex() for row in first.placed] != []
    assert second == first._replace(placed=())
    assert len(first.placed) == 2
    assert len(ids_in(store, "message")) == 2


def test_without_messages_nothing_is_due(store: OpenStore) -> None:
    store.topic()
    assert store.one(enqueue.enqueue_due, enqueue.EnqueueDue()) == (0, None, None, ())


def a_row(pending_id: int, message_group: str | None, topic_id: int = 1) -> PendingRow:
    values = dict.fromkeys(PendingRow._fields, 0) | {"pending_id": pending_id, "topic_id": topic_id}
    return PendingRow(**values | {"message_group": message_group})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("missing", "left"),
    [
        ({}, [1, 2, 3, 4, 5, 6]),
        ({(1, "a"): 3}, [1, 2, 3, 5, 6]),
        ({(1, "a"): 2}, [1, 2, 3, 5, 6]),
        ({(1, "a"): 1}, [1, 2, 3, 5, 6]),
        ({(1, "a"): 0}, [2, 3, 5, 6]),
        ({(2, "a"): 4}, [1, 2, 3, 4, 6]),
        ({(1, "b"): 1}, [1, 2, 4, 5, 6]),
        ({(1, "a"): 5, (3, "a"): 0}, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_messages_of_a_group_enter_up_to_one_that_is_missing(
    missing: dict[tuple[int, str], int], left: list[int]
) -> None:
    rows = [a_row(1, "a"), a_row(2, None), a_row(3, "b"), a_row(4, "a"), a_row(5, "a", 2), a_row(6, "b", 2)]
    assert [row.pending_id for row in enqueue._before_missing(rows, missing)] == left


def test_behind_a_message_that_stays_all_of_its_group_stay() -> None:
    rows = [a_row(5, "a"), a_row(2, "a"), a_row(6, None)]
    assert [row.pending_id for row in enqueue._before_missing(rows, {(1, "a"): 3})] == [6]


def test_a_step_has_limits_of_memory() -> None:
    assert (enqueue.STEP_BYTES_MAX, read.PAGE_BYTES_MAX) == (32 * 1024 * 1024, 16 * 1024 * 1024)
    assert (half_messages.CHECKS_PER_STEP_MAX, enqueue.LATE_MS) == (100, 5_000)


def test_messages_of_users_transactions_claim_their_keys_when_they_enter(store: OpenStore) -> None:
    topic, other = store.topic(), store.topic("other")
    properties = {PROPERTY: "order-42"}
    first, again, elsewhere = (a_delayed(store, SECOND, properties=properties) for _ in range(3))
    for of_topic, each in ((topic, first), (topic, again), (other, elsewhere)):
        store.one(pending.store_pending, pending.StorePending(of_topic, [each], "p1", POLICY, key_window_ms=0))
    store.conn.exec_driver_sql("UPDATE pending SET enqueued = 1")
    assert store.one_value("SELECT COUNT(*) FROM idempotency") == 0
    store.now_ms += SECOND
    step = store.one(enqueue.enqueue_due, enqueue.EnqueueDue(key_window_ms=MINUTE))
    assert (step.entered, len(step.placed)) == (3, 2)
    assert sorted(ids_in(store, "message")) == sorted([first.message_id, elsewhere.message_id])
    claims = store.rows("SELECT topic_id, expires_at_ms FROM idempotency ORDER BY topic_id")
    assert [tuple(each) for each in claims] == [(each.topic_id, store.now_ms + MINUTE) for each in (topic, other)]
