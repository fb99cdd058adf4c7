"""A repeated receive gets what it holds: the same messages, handles and attempts, and nothing of others."""

from __future__ import annotations

from typing import Any

import pytest

from popserver.model.message import Delivery
from popserver.model.retry import Holder
from popserver.model.topic import MessageType
from popserver.receiving import receive
from popserver.receiving.batch import Received
from tests.support.builders import in_order, messages_of
from tests.support.open_store import MINUTE, SECOND, OpenStore, a_receive, bodies, receipt_of


def answers(store: OpenStore, *requests: Any) -> list[Received]:
    return list(store.do(receive.receive, *requests))  # type: ignore[arg-type]


@pytest.mark.parametrize("is_in_order", [False, True])
def test_its_answer_is_the_same(store: OpenStore, is_in_order: bool) -> None:
    topic = store.topic(accepts=(MessageType.FIFO if is_in_order else MessageType.NORMAL,))
    group = store.group(meets=[topic])
    store.send(topic, in_order("g", 3, tag="A") if is_in_order else messages_of(3, tag="A"))
    request = a_receive(group, topic, 2, attempt_id="a1")
    first = store.one(receive.receive, request)
    assert [receipt_of(each).in_order for each in first.deliveries] == [is_in_order] * 2
    store.now_ms += SECOND
    before = store.digest()
    again = store.one(receive.receive, request)
    assert again == first._replace(more=True)
    assert store.digest() == before


def test_each_of_several_gets_its_own(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, messages_of(5))
    requests = [a_receive(group, topic, 1, attempt_id=name, client_id=name) for name in ("a", "b")]
    first, second = answers(store, *requests)
    others = a_receive(group, topic, 1), a_receive(group, topic, 1, attempt_id="c")
    found = answers(store, requests[1], others[0], requests[0], others[1])
    assert [each.deliveries for each in (found[0], found[2])] == [second.deliveries, first.deliveries]
    new = [delivery.stored.offset for each in (found[1], found[3]) for delivery in each.deliveries]
    assert new == [2, 3]


def test_one_attempt_that_is_asked_for_twice_in_one_transaction(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, messages_of(2))
    request = a_receive(group, topic, 2, attempt_id="a")
    first = store.one(receive.receive, request)
    assert [each.deliveries for each in answers(store, request, request)] == [first.deliveries] * 2


def test_what_was_acked_or_is_over_is_left_out(store: OpenStore) -> None:
    topic, other = store.topic(), store.topic("other")
    group, others = store.group(meets=[topic, other]), store.group("others", meets=[topic])
    store.send(topic, messages_of(2))
    store.send(other, messages_of(1))
    request = a_receive(group, topic, attempt_id="a", invisible_ms=MINUTE)
    first, second = store.one(receive.receive, request).deliveries
    store.one(receive.receive, a_receive(others, topic, attempt_id="a"))
    store.one(receive.receive, a_receive(group, other, attempt_id="a"))
    store.ack(group, first)
    assert store.one(receive.receive, request).deliveries == [second]
    store.end_due(after_ms=2 * MINUTE)
    (again,) = store.one(receive.receive, request).deliveries
    assert (again.stored.offset, again.attempt) == (1, 2)


@pytest.mark.parametrize(("holder", "invisible_ms"), [(Holder.PUSH, 5 * MINUTE), (Holder.SIMPLE, 40 * SECOND)])
def test_holds_that_were_given_up_for_lost_belong_to_the_client_again(
    store: OpenStore, holder: Holder, invisible_ms: int
) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, messages_of(2))
    wish: dict[str, Any] = {"attempt_id": "a", "holder": holder, "client_id": "c7", "invisible_ms": invisible_ms}
    held = store.one(receive.receive, a_receive(group, topic, **wish)).deliveries
    store.orphan_client("c7")
    store.now_ms += 500
    again = store.one(receive.receive, a_receive(group, topic, **wish)).deliveries
    assert bodies(again) == bodies(held)
    if holder is Holder.PUSH:
        ends = [_ends_of(store, group, each) for each in again]
        assert ends == [each.visible_at_ms for each in again] == [store.now_ms + invisible_ms] * 2
        assert store.due_ms == store.now_ms + invisible_ms
    assert store.end_due(after_ms=2 * SECOND) == 0
    assert store.ack(group, *again) == [None, None]


def _ends_of(store: OpenStore, group: Any, each: Delivery) -> int:
    return int(store.delivery_of(group, receipt_of(each).message_key).visible_at_ms)
