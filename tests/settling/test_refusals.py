"""Why a receipt is refused: one sentence for each reason, and what is as good as done is not refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from popserver.engine.transaction import Transaction
from popserver.model.errors import InvalidReceiptHandle, PopError, TooManyRequests
from popserver.model.group import Group
from popserver.model.handles import Receipt
from popserver.model.message import Delivery
from popserver.model.retry import Holder
from popserver.model.states import State
from popserver.model.topic import MessageType, Topic
from popserver.settling import ack, change, release
from popserver.settling.ack import Ack
from popserver.settling.change import Forward
from tests.support.builders import in_order
from tests.support.open_store import HOUR, MINUTE, SECOND, OpenStore, receipt_of
from tests.support.progress import reset
from tests.support.redrive import redrive_all

HOLD_MS = 30 * SECOND
USE_THE_NEWEST = " Use the newest handle, and a longer invisible duration"


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    store.topic("another")
    return store.topic(accepts=(MessageType.NORMAL, MessageType.FIFO))


@pytest.fixture
def group(store: OpenStore, topic: Topic) -> Group:
    store.group("another", meets=[topic])
    return store.group(meets=[topic])


def hold(store: OpenStore, group: Group, topic: Topic, **more: Any) -> Receipt:
    store.send(topic)
    (held,) = store.receive(group, topic, invisible_ms=HOLD_MS, **more)
    return receipt_of(held)


def why(store: OpenStore, group: Group, receipt: Delivery | Receipt) -> str:
    """The sentence; the store is as it was."""
    before = store.digest()
    (refusal,) = store.ack(group, receipt)
    assert isinstance(refusal, InvalidReceiptHandle)
    assert store.digest() == before
    return refusal.sentence


def no_longer(because: str, state: str) -> str:
    return (
        f"the receipt handle is no longer valid: {because}; the message is {state} in group 'billing'.{USE_THE_NEWEST}"
    )


class TestNoLongerValid:
    def test_its_time_has_just_ended(self, store: OpenStore, group: Group, topic: Topic) -> None:
        receipt = hold(store, group, topic)
        store.now_ms += HOLD_MS + 7
        assert why(store, group, receipt) == no_longer("its time ended 7 ms ago", "INFLIGHT")

    def test_the_message_waits_for_its_retry(self, store: OpenStore, group: Group, topic: Topic) -> None:
        receipt = hold(store, group, topic, holder=Holder.PUSH)
        waits = store.change(group, receipt, MINUTE)
        assert why(store, group, waits) == no_longer("its time ended", "WAITING_RETRY")
        assert why(store, group, receipt) == no_longer("its time ended, or it was replaced", "WAITING_RETRY")

    def test_the_message_is_ready_again(self, store: OpenStore, group: Group, topic: Topic) -> None:
        receipt = hold(store, group, topic)
        back = store.change(group, receipt, 0, give_back=True)
        assert why(store, group, back) == no_longer("its time ended", "READY")
        assert why(store, group, receipt) == no_longer("its time ended, or it was replaced", "READY")

    def test_a_newer_hold_has_replaced_it(self, store: OpenStore, group: Group, topic: Topic) -> None:
        receipt = hold(store, group, topic)
        store.end_due(after_ms=HOLD_MS)
        assert len(store.receive(group, topic)) == 1
        replaced = no_longer("a newer hold of attempt 2 has replaced it", "INFLIGHT")
        assert why(store, group, receipt) == replaced
        store.now_ms += HOUR
        assert why(store, group, receipt) == replaced, "also after its end"

    def test_the_message_was_reset(self, store: OpenStore, group: Group, topic: Topic) -> None:
        receipt = hold(store, group, topic)
        reset(store, group, topic, 0)
        assert why(store, group, receipt) == no_longer("its time ended, or it was replaced", "READY")

    def test_the_group_has_left_the_queue(self, store: OpenStore, group: Group, topic: Topic) -> None:
        receipt = hold(store, group, topic)
        for table in ("delivery", "progress"):
            store.conn.exec_driver_sql(f"DELETE FROM {table} WHERE group_id = {group.group_id}")
        store.conn.commit()
        assert why(store, group, receipt) == no_longer("its time ended, or it was replaced", "READY")

    def test_the_message_is_a_dead_letter(self, store: OpenStore, group: Group, topic: Topic) -> None:
        receipt = hold(store, group, topic)
        store.forward(group, receipt)
        assert why(store, group, receipt) == no_longer("its time ended, or it was replaced", "DLQ")

    def test_the_message_was_committed_long_ago(self, store: OpenStore, group: Group, topic: Topic) -> None:
        receipt = hold(store, group, topic)
        assert store.ack(group, receipt) == [None]
        store.now_ms += HOLD_MS - 1
        assert store.ack(group, receipt) == [None]
        store.now_ms += 1
        assert why(store, group, receipt) == no_longer("its time ended, or it was replaced", "COMMIT")

    def test_it_was_acked_before_its_turn_long_ago(self, store: OpenStore, group: Group, topic: Topic) -> None:
        store.send(topic, in_order("g", 2))
        first, second = store.receive(group, topic, invisible_ms=HOUR)
        assert store.ack(group, second) == [None]
        store.now_ms += HOUR - 1
        assert store.ack(group, second) == [None]
        store.now_ms += 1
        assert why(store, group, second) == no_longer("its time ended", "READY")
        assert receipt_of(first).in_order


@pytest.mark.parametrize("act", ["change", "give back", "forward"])
def test_what_is_acked_already_cannot_be_changed(store: OpenStore, group: Group, topic: Topic, act: str) -> None:
    store.send(topic, in_order("g", 2))
    _, second = store.receive(group, topic)
    assert store.ack(group, second) == [None]
    key = receipt_of(second).message_key
    refusal: PopError | None
    if act == "forward":
        refusal = store.forward(group, second)
    else:
        with pytest.raises(InvalidReceiptHandle) as refused:
            store.change(group, second, MINUTE, give_back=act == "give back")
        refusal = refused.value
    assert isinstance(refusal, InvalidReceiptHandle)
    assert refusal.sentence == f"message {key} is acked already; nothing is held"


def test_a_receipt_with_the_wrong_order_is_named(store: OpenStore, group: Group, topic: Topic) -> None:
    plain = hold(store, group, topic)
    store.send(topic, in_order("g"))
    (ordered,) = store.receive(group, topic)
    for receipt in (plain, receipt_of(ordered)):
        sentence = why(store, group, receipt._replace(in_order=not receipt.in_order))
        assert "the receipt handle was changed after it was given to group 'billing'" in sentence
        assert f"message group of message {receipt.message_key}" in sentence
        refusal = store.forward(group, receipt._replace(in_order=not receipt.in_order))
        assert isinstance(refusal, InvalidReceiptHandle)


@pytest.mark.parametrize("done", ["dead letter", "commit"])
def test_a_message_that_has_ended_is_forwarded_without_effect(
    store: OpenStore, group: Group, topic: Topic, done: str
) -> None:
    receipt = hold(store, group, topic)
    if done == "commit":
        store.ack(group, receipt)
    else:
        store.forward(group, receipt)
    store.now_ms += HOUR
    before = store.digest()
    assert store.forward(group, receipt) is None
    assert store.digest() == before


def test_after_a_redrive_the_first_receipt_is_told_of_the_new_state(
    store: OpenStore, group: Group, topic: Topic
) -> None:
    receipt = hold(store, group, topic)
    store.forward(group, receipt)
    redrive_all(store, group)
    assert why(store, group, receipt) == no_longer("its time ended, or it was replaced", "READY")
    (again,) = store.receive(group, topic, invisible_ms=HOUR)
    assert why(store, group, receipt) == no_longer("its time ended, or it was replaced", "INFLIGHT")
    assert store.ack(group, again) == [None]
    assert store.ack(group, again) == [None]
    assert store.forward(group, again) is None


def test_a_dead_letter_of_the_same_transaction_is_one(store: OpenStore, group: Group, topic: Topic) -> None:
    receipt = hold(store, group, topic)

    def both(tx: Transaction, requests: Sequence[Forward]) -> list[Any]:
        return [*change.forward(tx, requests), *ack.ack(tx, [Ack(group, [receipt])])]

    forwarded, (refusal,) = store.do(both, Forward(group, receipt))
    assert forwarded is None
    assert isinstance(refusal, InvalidReceiptHandle)
    assert "the message is DLQ in group" in refusal.sentence


@pytest.mark.parametrize("message_group", [None, "g"])
def test_what_a_users_transaction_has_locked_is_left_and_the_others_are_done(
    store: OpenStore, group: Group, topic: Topic, message_group: str | None
) -> None:
    if store.database.is_sqlite:
        pytest.skip("SQLite has one writer")
    kind = MessageType.FIFO if message_group else MessageType.NORMAL
    for name in "abcd":
        store.send(topic, message_group=message_group and name, message_type=kind)
    held = [receipt_of(each) for each in store.receive(group, topic, client_id="c1", holder=Holder.PUSH)]
    with store.database.connect_writer() as other:
        store.database.begin(other)
        other.exec_driver_sql(f"SELECT 1 FROM delivery WHERE message_key = {held[1].message_key} FOR UPDATE")
        outcomes = store.ack(group, *held[:2])
        assert [type(each) for each in outcomes] == [type(None), TooManyRequests]
        assert "which may be about to ack it in group 'billing'" in str(outcomes[1])
        with pytest.raises(TooManyRequests, match="may be about to ack it"):
            store.change(group, held[1], MINUTE)
        assert isinstance(store.forward(group, held[1]), TooManyRequests)
        (refusal,) = store.do(release.cancel_delivery, release.CancelDelivery(held[1:3]))
        assert isinstance(refusal, TooManyRequests)
        assert "that was not sent is locked" in refusal.sentence
        (refusal,) = store.do(release.abandon_holds, release.AbandonHolds(receipts=held[1:]))
        assert isinstance(refusal, TooManyRequests)
        assert "whose client disconnected is locked" in refusal.sentence
        (refusal,) = store.do(release.abandon_holds, release.AbandonHolds(client_id="c1"))
        assert isinstance(refusal, TooManyRequests)
        assert "held by client 'c1' is locked" in refusal.sentence
        store.adopt("c1", store.now_ms + HOUR)
        other.exec_driver_sql("ROLLBACK")
    assert list(store.states(group).values()) == [State.COMMIT, State.INFLIGHT, State.READY, State.INFLIGHT]
    assert store.delivery_of(group, held[1].message_key).visible_at_ms == held[1].ends_at_ms
    assert store.delivery_of(group, held[3].message_key).visible_at_ms == store.now_ms + SECOND
