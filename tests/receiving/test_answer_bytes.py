"""A receive carries so many bytes of bodies, and so does a transaction."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from popserver.engine.transaction import ANSWER_BYTES_MAX
from popserver.messages.by_key import SMALL_BODY_BYTES
from popserver.model.errors import PopError
from popserver.model.topic import MessageType
from popserver.receiving import answers, receive
from popserver.receiving.batch import Received
from tests.support.builders import a_message, in_order
from tests.support.open_store import OpenStore, a_receive

LARGE = SMALL_BODY_BYTES + 1


@pytest.fixture(autouse=True)
def few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "RECEIVE_BYTES_MAX", 3 * LARGE)


def a_body(number: int, size: int) -> bytes:
    return bytes([number]) * size


def counts(answers: Sequence[Received | PopError]) -> list[int]:
    return [len(each.deliveries) for each in answers if isinstance(each, Received)]


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [
        ([LARGE] * 7, [3, 3, 1]),
        ([LARGE, 4 * LARGE, LARGE], [1, 1, 1]),
        ([10 * LARGE], [1]),
        ([1] * 31 + [LARGE] * 4, [32, 3]),
        ([LARGE - 1, LARGE, LARGE - 1, LARGE], [3, 1]),
        ([LARGE - 1] * 5, [5]),
    ],
    ids=["alike", "one above all", "alone", "small before", "mixed", "small ones are not counted"],
)
def test_fewer_messages_come_where_they_are_large(store: OpenStore, sizes: list[int], batches: list[int]) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    sent = [a_message(body=a_body(number, size)) for number, size in enumerate(sizes)]
    store.send(topic, sent)
    came: list[int] = []
    bodies: list[bytes] = []
    more = True
    while more:
        received = store.one(receive.receive, a_receive(group, topic))
        came.append(len(received.deliveries))
        bodies += [each.stored.message.body for each in received.deliveries]
        assert all(each.attempt == 1 for each in received.deliveries), "what was left out has not failed"
        store.ack(group, *received.deliveries)
        more = received.more
    assert [count for count in came if count] == batches
    assert sorted(bodies) == sorted(each.body for each in sent)


def test_what_is_left_out_of_a_message_group_comes_in_order(store: OpenStore) -> None:
    topic = store.topic(accepts=(MessageType.FIFO,))
    group = store.group(meets=[topic])
    store.send(topic, [each._replace(body=a_body(n, LARGE)) for n, each in enumerate(in_order("g", 8))])
    came: list[int] = []
    while deliveries := store.receive(group, topic):
        assert len(deliveries) <= 3
        came += [each.stored.message.body[0] for each in deliveries]
        store.ack(group, *deliveries)
    assert came == list(range(8))


def test_a_transaction_carries_so_many_for_all(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, [a_message(body=a_body(number, LARGE)) for number in range(6)])
    store.answer_bytes = 4 * LARGE
    several = store.do(receive.receive, *(a_receive(group, topic, 2, client_id=client) for client in "abc"))
    assert counts(several) == [2, 2, 0]
    assert all(each.more for each in several)  # type: ignore[union-attr]
    store.answer_bytes = 0
    received = store.one(receive.receive, a_receive(group, topic, 2))
    assert (received.deliveries, received.more) == ([], True)
    store.answer_bytes = ANSWER_BYTES_MAX
    assert len(store.receive(group, topic)) == 2


def test_what_each_receive_of_several_leaves_out_comes_later(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, [a_message(body=a_body(number, LARGE)) for number in range(10)])
    several = store.do(receive.receive, *(a_receive(group, topic, 5, client_id=client) for client in "ab"))
    assert counts(several) == [3, 3]
    assert len(store.receive(group, topic, 4)) == 3
    assert len(store.receive(group, topic, 4)) == 1


def test_so_do_receives_that_are_repeated(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, [a_message(body=a_body(number, LARGE)) for number in range(6)])
    receives = [a_receive(group, topic, 2, client_id=name, attempt_id=name) for name in "abc"]
    first = store.do(receive.receive, *receives)
    for bytes_left, expected in ((0, [0, 0, 0]), (1, [2, 0, 0])):
        store.answer_bytes = bytes_left
        again = store.do(receive.receive, *receives)
        assert counts(again) == expected
    store.answer_bytes = 3 * LARGE
    again = store.do(receive.receive, *receives)
    assert counts(again) == [2, 2, 0]
    assert again[2].more, "it is not over"  # type: ignore[union-attr]
    assert store.one(receive.receive, receives[2]) == first[2]._replace(more=True)  # type: ignore[union-attr]


def test_what_is_left_out_does_not_become_more_and_more(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    for start in range(0, 160, 40):
        store.send(topic, [a_message(body=a_body(start + number, LARGE)) for number in range(40)])
    came: list[int] = []
    for _ in range(40):
        deliveries = store.receive(group, topic, 8)
        came += [each.stored.message.body[0] for each in deliveries]
        store.ack(group, *deliveries)
        assert store.one_value("SELECT count(*) FROM delivery") <= 8
    assert len(came) == len(set(came)) == 120


def test_large_messages_that_fail_again_and_again_leave_bytes_to_new_ones(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic], max_attempts=500)
    store.send(topic, [a_message(body=a_body(0, LARGE)) for _ in range(12)])
    failing = [each for _ in range(4) for each in store.receive(group, topic)]
    assert len(failing) == 12
    store.send(topic, [a_message(body=a_body(1, LARGE)) for _ in range(10)])
    done = 0
    for _ in range(20):
        for each in failing:
            store.change(group, each, 1)
        store.end_due(after_ms=10)
        came = store.receive(group, topic)
        failing = [each for each in came if each.stored.message.body[0] == 0]
        done += len(came) - len(failing)
        store.ack(group, *(each for each in came if each not in failing))
    assert done == 10
