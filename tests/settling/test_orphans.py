"""Holds whose holder is gone, and a holder that comes back in time."""

from __future__ import annotations

from typing import Any

import pytest

from popserver.delivery import holds
from popserver.model.errors import InvalidReceiptHandle
from popserver.model.retry import Holder
from popserver.model.states import State
from popserver.model.topic import MessageType
from popserver.settling import release
from tests.support.open_store import HOUR, MINUTE, SECOND, START_MS, OpenStore, ids, receipt_of

CAP_MS = 3 * HOUR


@pytest.mark.row("L11")
def test_a_gone_clients_push_holds_are_ready_after_a_second(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 3)
    store.receive(group, topic, 1, holder=Holder.PUSH, invisible_ms=CAP_MS, client_id="gone")
    store.receive(group, topic, 1, holder=Holder.PUSH, invisible_ms=CAP_MS, client_id="here")
    store.receive(group, topic, 1, holder=Holder.SIMPLE, invisible_ms=HOUR, client_id="gone")
    store.orphan_client("gone")
    assert store.due_ms == START_MS + SECOND
    assert store.end_due(after_ms=SECOND - 1) == 0
    assert store.end_due(after_ms=1) == 1
    assert list(store.states(group).values()) == [State.READY, State.INFLIGHT, State.INFLIGHT]
    assert [each.attempt for each in store.receive(group, topic)] == [2], "the attempt counts, no ladder"


def test_of_every_group_and_topic(store: OpenStore) -> None:
    topics = [store.topic("one"), store.topic("other")]
    groups = [store.group(name, meets=topics) for name in ("a", "b")]
    for topic in topics:
        store.send(topic)
        for group in groups:
            store.receive(group, topic, holder=Holder.PUSH, invisible_ms=CAP_MS, client_id="gone")
    store.orphan_client("gone")
    assert store.end_due(after_ms=SECOND) == 4


def test_what_waits_for_a_retry_goes_on_waiting(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    (held,) = store.receive(group, topic, holder=Holder.PUSH, client_id="gone")
    store.change(group, held, 10 * SECOND)
    store.orphan_client("gone")
    assert store.end_due(after_ms=SECOND) == 0
    assert set(store.states(group).values()) == {State.WAITING_RETRY}


def test_a_lapse_at_the_last_attempt_is_the_end(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic], max_attempts=1)
    store.send(topic)
    store.receive(group, topic, holder=Holder.PUSH, invisible_ms=CAP_MS, client_id="gone")
    store.orphan_client("gone")
    store.end_due(after_ms=SECOND)
    assert set(store.states(group).values()) == {State.DLQ}


@pytest.mark.row("L15")
def test_a_client_back_in_time_keeps_its_holds(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    (held,) = store.receive(group, topic, holder=Holder.PUSH, invisible_ms=CAP_MS, client_id="c1")
    store.orphan_client("c1")
    store.now_ms += SECOND - 1
    store.adopt("c1", store.now_ms + CAP_MS)
    assert store.end_due(after_ms=HOUR) == 0
    row = store.delivery_of(group, receipt_of(held).message_key)
    assert (row.holder, row.visible_at_ms) == (Holder.PUSH, START_MS + SECOND - 1 + CAP_MS)
    assert store.ack(group, held) == [None]


def test_a_failure_told_in_the_last_second_is_a_failure(store: OpenStore) -> None:
    """Not a longer hold: one of that kind would outlive every client, up to 12 h."""
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    (held,) = store.receive(group, topic, holder=Holder.PUSH, invisible_ms=CAP_MS, client_id="c1")
    store.orphan_client("c1")
    store.change(group, held, 10 * SECOND)
    assert set(store.states(group).values()) == {State.WAITING_RETRY}
    assert store.end_due(after_ms=10 * SECOND) == 1
    assert store.receive(group, topic)[0].attempt == 2


def test_a_client_back_too_late_keeps_nothing(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    (held,) = store.receive(group, topic, holder=Holder.PUSH, invisible_ms=CAP_MS, client_id="c1")
    store.orphan_client("c1")
    store.now_ms += SECOND
    store.adopt("c1", store.now_ms + CAP_MS)
    assert store.end_due() == 1
    assert store.receive(group, topic)[0].attempt == 2
    assert store.ack(group, held) != [None]


@pytest.mark.parametrize("holder", [Holder.PUSH, Holder.SIMPLE])
def test_a_grant_nobody_got_is_ready_after_a_second(store: OpenStore, holder: Holder) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 2)
    lost, kept = store.receive(group, topic, holder=holder, invisible_ms=HOUR)
    store.one(release.abandon_holds, release.AbandonHolds(receipts=[receipt_of(lost)]))
    assert store.end_due(after_ms=SECOND) == 1
    assert store.ack(group, kept) == [None]
    assert store.receive(group, topic)[0].attempt == 2


def test_a_grant_nobody_got_never_lives_longer_for_it(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    (lost,) = store.receive(group, topic, invisible_ms=SECOND // 2)
    store.one(release.abandon_holds, release.AbandonHolds(receipts=[receipt_of(lost)]))
    assert store.end_due(after_ms=SECOND // 2) == 1


@pytest.mark.parametrize("holder", [Holder.PUSH, Holder.SIMPLE])
def test_a_grant_nobody_got_is_not_given_back_to_its_client(store: OpenStore, holder: Holder) -> None:
    """The client never saw it: it would stay held until the cap."""
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    (lost,) = store.receive(group, topic, holder=holder, invisible_ms=HOUR, client_id="c1")
    store.one(release.abandon_holds, release.AbandonHolds(receipts=[receipt_of(lost)]))
    store.adopt("c1", store.now_ms + CAP_MS)
    assert store.end_due(after_ms=SECOND) == 1


@pytest.mark.parametrize("holder", [Holder.PUSH, Holder.SIMPLE])
def test_a_broken_answer_that_is_asked_for_again_is_held_as_long_as_the_first(store: OpenStore, holder: Holder) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    wish: dict[str, Any] = {"holder": holder, "invisible_ms": MINUTE, "attempt_id": "a-1"}
    (lost,) = store.receive(group, topic, client_id="c1", **wish)
    store.one(release.abandon_holds, release.AbandonHolds(receipts=[receipt_of(lost)]))
    store.now_ms += SECOND // 2
    (again,) = store.receive(group, topic, client_id="c2", **wish)
    assert (ids([again]), again.attempt) == (ids([lost]), 1)
    row = store.delivery_of(group, receipt_of(again).message_key)
    ends_at_ms = START_MS + SECOND // 2 + MINUTE
    assert (row.holder, row.client_id, row.visible_at_ms) == (holder, "c2", ends_at_ms)
    assert receipt_of(again).ends_at_ms == ends_at_ms
    assert store.end_due(after_ms=MINUTE - 1) == 0
    assert store.ack(group, again) == [None]


@pytest.mark.parametrize("max_attempts", [1, 17])
def test_a_simple_consumer_may_prolong_what_it_got_of_a_broken_answer(store: OpenStore, max_attempts: int) -> None:
    topic = store.topic()
    group = store.group(meets=[topic], max_attempts=max_attempts)
    store.send(topic)
    (got,) = store.receive(group, topic, invisible_ms=MINUTE)
    store.one(release.abandon_holds, release.AbandonHolds(receipts=[receipt_of(got)]))
    prolonged = store.change(group, got, MINUTE)
    assert set(store.states(group).values()) == {State.INFLIGHT}
    assert store.end_due(after_ms=MINUTE - 1) == 0
    assert store.ack(group, prolonged) == [None]


@pytest.mark.parametrize("message_group", [None, "g"], ids=["unordered", "in-order"])
@pytest.mark.parametrize("holder", [Holder.PUSH, Holder.SIMPLE])
def test_a_withdrawn_grant_burns_no_attempt(store: OpenStore, holder: Holder, message_group: str | None) -> None:
    topic = store.topic(accepts=(MessageType.NORMAL, MessageType.FIFO))
    group = store.group(meets=[topic], max_attempts=1)
    kind = MessageType.FIFO if message_group else MessageType.NORMAL
    store.send(topic, 3, message_group=message_group, message_type=kind)
    for _ in range(3):
        lost = store.receive(group, topic, holder=holder, invisible_ms=HOUR)
        assert [each.attempt for each in lost] == [1, 1, 1]
        store.one(release.cancel_delivery, release.CancelDelivery([receipt_of(each) for each in lost]))
        assert set(store.states(group).values()) == {State.READY}
        assert store.rings == {topic.topic_id}
    assert None not in store.ack(group, *lost), "those handles are dead"
    assert ids(store.receive(group, topic)) == ids(lost)


def test_a_withdrawn_grant_is_not_changed_again(store: OpenStore) -> None:
    """A change repeats its answer, but not that of a hold that nobody has any more."""
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    (old,) = store.receive(group, topic)
    changed = store.change(group, old, MINUTE)
    store.one(release.cancel_delivery, release.CancelDelivery([changed]))
    with pytest.raises(InvalidReceiptHandle):
        store.change(group, old, MINUTE)
    assert set(store.states(group).values()) == {State.READY}


def test_a_hold_that_ended_or_was_replaced_is_not_withdrawn(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    (old,) = store.receive(group, topic, invisible_ms=SECOND)
    store.end_due(after_ms=SECOND)
    (new,) = store.receive(group, topic)
    store.one(release.cancel_delivery, release.CancelDelivery([receipt_of(old)]))
    assert store.ack(group, new) == [None]


def test_grants_are_withdrawn_beside_one_that_is_acked(store: OpenStore) -> None:
    """No row is locked, so nothing is refused."""
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 3)
    lost = store.receive(group, topic)
    assert store.ack(group, lost[1]) == [None]
    assert store.one(release.cancel_delivery, release.CancelDelivery([receipt_of(each) for each in lost])) is None
    assert sorted(store.states(group).values()) == [State.COMMIT, State.READY, State.READY]


def test_an_orphaned_hold_ends_no_later_than_it_would_have(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    (held,) = store.receive(group, topic, holder=Holder.PUSH, invisible_ms=10 * SECOND, client_id="c1")
    store.now_ms += 10 * SECOND
    store.orphan_client("c1")
    assert store.ack(group, held) != [None], "its time was over"
    assert store.end_due() == 1


def test_open_push_clients(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 4)
    for client_id, holder in (("a", Holder.PUSH), ("a", Holder.PUSH), ("b", Holder.PUSH), ("c", Holder.SIMPLE)):
        store.receive(group, topic, 1, holder=holder, client_id=client_id)
    assert sorted(holds.unattended_push_clients(store.conn)) == ["a", "b"]


def test_an_ack_beyond_the_handles_end_is_answered_beside_one_that_is_too_late(store: OpenStore) -> None:
    """The hold of a client that came back lasts longer than its handle says."""
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 2)
    late, kept = store.receive(group, topic, 2, holder=Holder.PUSH, invisible_ms=MINUTE, client_id="c1")
    assert store.ack(group, late) == [None]
    store.orphan_client("c1")
    store.adopt("c1", store.now_ms + HOUR)
    store.now_ms += 2 * MINUTE
    refused, acked = store.ack(group, late, kept)
    assert isinstance(refused, InvalidReceiptHandle)
    assert acked is None
    assert set(store.states(group).values()) == {State.COMMIT}
