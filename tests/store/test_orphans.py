"""Holds whose holder is gone, and a holder that comes back in time."""

from __future__ import annotations

import pytest

from popserver.domain.delivery import State
from popserver.domain.retry import Holder
from popserver.store import holds
from tests.support.open_store import HOUR, SECOND, START_MS, OpenStore, receipt_of

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
    store.one(holds.orphan, holds.Orphan(receipts=[receipt_of(lost)]))
    assert store.end_due(after_ms=SECOND) == 1
    assert store.ack(group, kept) == [None]
    assert store.receive(group, topic)[0].attempt == 2


def test_a_grant_nobody_got_never_lives_longer_for_it(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    (lost,) = store.receive(group, topic, invisible_ms=SECOND // 2)
    store.one(holds.orphan, holds.Orphan(receipts=[receipt_of(lost)]))
    assert store.end_due(after_ms=SECOND // 2) == 1


@pytest.mark.parametrize("holder", [Holder.PUSH, Holder.SIMPLE])
def test_a_grant_nobody_got_is_not_given_back_to_its_client(store: OpenStore, holder: Holder) -> None:
    """The client never saw it: it would stay held until the cap."""
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    (lost,) = store.receive(group, topic, holder=holder, invisible_ms=HOUR, client_id="c1")
    store.one(holds.orphan, holds.Orphan(receipts=[receipt_of(lost)]))
    store.adopt("c1", store.now_ms + CAP_MS)
    assert store.end_due(after_ms=SECOND) == 1


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
    assert sorted(holds.push_clients(store.conn)) == ["a", "b"]
