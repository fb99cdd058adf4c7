"""Receipts of messages in message groups: what a strange or a changed one may not bring about."""

from __future__ import annotations

import pytest

from popserver.model.errors import InvalidReceiptHandle
from popserver.model.group import Group
from popserver.model.message import Delivery
from popserver.model.states import State
from popserver.model.topic import MessageType, Topic
from tests.support.builders import a_message, in_order
from tests.support.open_store import OpenStore, ids, receipt_of


def two_held(store: OpenStore, group: Group, topic: Topic) -> list[Delivery]:
    store.send(topic, 2, message_group="g", message_type=MessageType.FIFO)
    return store.receive(group, topic)


def test_two_receipts_of_one_hold_stand_for_one_message(store: OpenStore, group: Group, topic: Topic) -> None:
    first, second = two_held(store, group, topic)
    receipt = receipt_of(second)
    assert store.ack(group, receipt, receipt._replace(ends_at_ms=receipt.ends_at_ms + 1)) == [None, None]
    assert store.states(group) == dict(zip(ids([first, second]), [State.INFLIGHT, State.READY], strict=True))
    assert store.ack(group, first) == [None]
    assert set(store.states(group).values()) == {State.COMMIT}


def test_a_message_that_is_acked_before_its_turn_is_neither_forwarded_nor_held(
    store: OpenStore, group: Group, topic: Topic
) -> None:
    """It is not committed before the first one, and the refusal does not say that it is."""
    _, second = two_held(store, group, topic)
    assert store.ack(group, second) == [None]
    refused = store.forward(group, second)
    assert isinstance(refused, InvalidReceiptHandle)
    assert "is acked already" in refused.sentence
    with pytest.raises(InvalidReceiptHandle, match="is acked already"):
        store.change(group, second, 1_000)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("after_end_ms", "is_late"), [(-1, False), (0, True), (1, True)])
def test_an_ack_at_the_moment_when_its_hold_ends_is_late(
    store: OpenStore, group: Group, topic: Topic, count: int, after_end_ms: int, is_late: bool
) -> None:
    """At that moment the message may be granted again: it has one holder."""
    held = two_held(store, group, topic)[:count]
    store.now_ms = receipt_of(held[0]).ends_at_ms + after_end_ms
    outcomes = store.ack(group, *held)
    assert [isinstance(each, InvalidReceiptHandle) for each in outcomes] == [is_late] * count
    assert store.states(group)[ids(held)[0]] == (State.INFLIGHT if is_late else State.COMMIT)


def test_a_receipt_that_denies_its_message_group_does_nothing(store: OpenStore, group: Group, topic: Topic) -> None:
    """Its group would be without a lock, and nothing would open it afterwards."""
    first, second = two_held(store, group, topic)
    changed = receipt_of(first)._replace(in_order=False)
    before = store.digest()
    (refusal,) = store.ack(group, changed)
    assert isinstance(refusal, InvalidReceiptHandle)
    for give_back in (False, True):
        with pytest.raises(InvalidReceiptHandle, match="message group"):
            store.change(group, changed, 0, give_back=give_back)
    assert isinstance(store.forward(group, changed), InvalidReceiptHandle)
    assert store.digest() == before
    assert store.ack(group, first, second) == [None, None]


def test_a_receipt_that_is_wrong_about_its_group_counts_for_no_other(store: OpenStore) -> None:
    """Beside the head of a run it would stand for the message behind that one."""
    topic = store.topic("mixed", accepts=(MessageType.NORMAL, MessageType.FIFO))
    group = store.group("worker", meets=[topic])
    store.send(topic, [*in_order("g", 2, topic.name), a_message(topic.name)])
    head, behind, other = store.receive(group, topic)
    outcomes = store.ack(group, head, receipt_of(other)._replace(in_order=True))
    assert [outcome is None for outcome in outcomes] == [True, False]
    assert store.states(group) == dict(
        zip(ids([head, behind, other]), [State.COMMIT, State.INFLIGHT, State.INFLIGHT], strict=True)
    )
