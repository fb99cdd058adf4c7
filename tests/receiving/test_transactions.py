"""Receives of one transaction: what each gets, what it says is left, and what the transaction leaves behind."""

from __future__ import annotations

import pytest

from popserver.delivery.queues_to_read import OpenFrom, ReadyFrom, ReadySearch
from popserver.filters import tags
from popserver.model.group import Group, HistoryLevel
from popserver.model.handles import decode_receipt
from popserver.model.message import Delivery
from popserver.model.topic import Topic
from popserver.receiving import receive, scan
from popserver.receiving.batch import SHARE_MIN, Receive, Received
from tests.support.builders import in_order
from tests.support.open_store import SECOND, START_MS, OpenStore, a_receive
from tests.support.progress import ORDERED, offsets_of


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    return store.topic(accepts=ORDERED)


@pytest.fixture
def group(store: OpenStore, topic: Topic) -> Group:
    return store.group(meets=[topic])


def received(store: OpenStore, *requests: Receive) -> list[tuple[list[int], bool]]:
    """The offsets that each request gets, and whether messages may be left."""
    answers = store.do(receive.receive, *requests)
    assert all(isinstance(each, Received) for each in answers)
    return [(offsets_of(each.deliveries), each.more) for each in answers if isinstance(each, Received)]


def attempted(store: OpenStore, request: Receive) -> tuple[int, bool]:
    """How many messages an attempt gets, and whether messages may be left. Nothing is stored."""
    with store.rolled_back() as tx:
        granted, more = receive.grant_to_attempt(tx, request)
        return len(granted), more


def candidates(store: OpenStore, request: Receive) -> list[int]:
    """How many messages a search finds from each source: READY again, and all others."""
    with store.rolled_back() as tx:
        batch = receive.receive_batch_of([request])
        (portion,) = receive._find(tx, batch, [request]).portions
        again = [each for each in portion.found if each.has_delivery and each.group_key is None]
        return [len(again), len(portion.found) - len(again)]


def give_back(store: OpenStore, group: Group, held: list[Delivery]) -> None:
    for each in held:
        store.change(group, each, 0, give_back=True)


def open_up(store: OpenStore, group: Group, topic: Topic, name: str, count: int, tag: str = "A") -> None:
    """A message group with so many messages that the scan has passed."""
    store.send(topic, in_order(name, 1))
    (held,) = store.receive(group, topic, 1)
    store.send(topic, in_order(name, count, tag=tag))
    assert store.receive(group, topic, 1) == []
    store.ack(group, held)


class TestWhatIsLeft:
    def test_two_topics(self, store: OpenStore, topic: Topic, group: Group) -> None:
        other = store.topic("other")
        store.meet(group, other)
        store.send(topic, 2)
        store.send(other, 3)
        requests = a_receive(group, topic, 2), a_receive(group, other, 4)
        assert received(store, *requests) == [([0, 1], True), ([0, 1, 2], False)]

    @pytest.mark.parametrize(("wanted", "is_left"), [(2, True), (3, True), (4, False)])
    def test_of_an_attempt(self, store: OpenStore, topic: Topic, group: Group, wanted: int, is_left: bool) -> None:
        store.send(topic, 3)
        assert attempted(store, a_receive(group, topic, wanted)) == (min(wanted, 3), is_left)

    def test_of_an_attempt_that_has_not_read_all(
        self, store: OpenStore, topic: Topic, group: Group, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.send(topic, 3)
        monkeypatch.setattr(scan, "_FIRST_WINDOW", 2)
        assert attempted(store, a_receive(group, topic, 4)) == (2, True)

    def test_a_later_message_of_a_message_group(self, store: OpenStore, topic: Topic, group: Group) -> None:
        store.send(topic, in_order("g", 2))
        one, two = (a_receive(group, topic, size, client_id=str(size)) for size in (1, 2))
        assert received(store, one, two) == [([0], True), ([], True)]

    def test_messages_behind_those_that_a_filter_refuses(self, store: OpenStore, topic: Topic, group: Group) -> None:
        open_up(store, group, topic, "g", 9 * SHARE_MIN)
        assert received(store, a_receive(group, topic, 4, wanted=tags.parse("B"))) == [([], True)]

    def test_open_message_groups_that_found_no_place(self, store: OpenStore, topic: Topic, group: Group) -> None:
        for name in "ab":
            open_up(store, group, topic, name, 1)
        assert received(store, a_receive(group, topic, 1)) == [([1], True)]
        assert received(store, a_receive(group, topic, 9)) == [([3], False)]

    def test_new_messages_beside_an_open_message_group(self, store: OpenStore, topic: Topic, group: Group) -> None:
        """Beside it the scan does not read far."""
        store.send(topic, in_order("held", 1))
        assert len(store.receive(group, topic)) == 1
        open_up(store, group, topic, "open", 1)
        store.send(topic, in_order("held", 99))
        assert received(store, a_receive(group, topic, 40)) == [([2], True)]


class TestBytesOfTheAnswer:
    @pytest.mark.parametrize(("allowed", "count"), [(0, 0), (1, 3)])
    def test_nothing_is_granted_without_any(
        self, store: OpenStore, topic: Topic, group: Group, allowed: int, count: int
    ) -> None:
        store.send(topic, 3, body=b"12345")
        store.answer_bytes = allowed
        ((offsets, is_left),) = received(store, a_receive(group, topic))
        assert (len(offsets), is_left) == (count, not count)

    def test_all_receives_of_a_transaction_share_them(self, store: OpenStore, topic: Topic, group: Group) -> None:
        other = store.group("other", meets=[topic])
        store.send(topic, 3, body=b"12345")
        store.answer_bytes = 15
        assert received(store, a_receive(group, topic), a_receive(other, topic)) == [([0, 1, 2], False), ([], True)]


class TestNoMoreThanItMay:
    def test_ready_again_beside_an_open_message_group(self, store: OpenStore, topic: Topic, group: Group) -> None:
        store.send(topic, 4)
        held = store.receive(group, topic, 4)
        open_up(store, group, topic, "a", 3)
        give_back(store, group, held)
        assert candidates(store, a_receive(group, topic, 4)) == [2, 2]

    def test_the_rest_of_a_message_group_that_comes_again(self, store: OpenStore, topic: Topic, group: Group) -> None:
        store.send(topic, 2)
        store.send(topic, in_order("again", SHARE_MIN + 6))
        give_back(store, group, store.receive(group, topic, SHARE_MIN + 8))
        assert candidates(store, a_receive(group, topic, SHARE_MIN + 4)) == [2, SHARE_MIN + 2]


class TestWhereTheNextSearchBegins:
    """Not on SQLite, whose indexes have no old entries."""

    @staticmethod
    def begins(store: OpenStore, group: Group, topic: Topic, kind: type[ReadyFrom | OpenFrom]) -> int:
        if store.database.is_sqlite:
            pytest.skip("SQLite has one writer")
        store.memory.clear()
        store.now_ms += 10 * SECOND
        store.receive(group, topic, 1)
        return int(store.memory[kind].of(ReadySearch(group.group_id, topic.topic_id), store.now_ms))

    def test_at_the_first_that_is_ready_again(self, store: OpenStore, topic: Topic, group: Group) -> None:
        store.send(topic, 3)
        give_back(store, group, store.receive(group, topic))
        assert self.begins(store, group, topic, ReadyFrom) == START_MS

    def test_at_the_first_that_is_ready_again_beside_new_ones(
        self, store: OpenStore, topic: Topic, group: Group
    ) -> None:
        store.send(topic, 3)
        give_back(store, group, store.receive(group, topic))
        store.send(topic, 3)
        assert self.begins(store, group, topic, ReadyFrom) == START_MS

    def test_at_the_message_group_that_opened_first(self, store: OpenStore, topic: Topic, group: Group) -> None:
        open_up(store, group, topic, "a", 3)
        assert self.begins(store, group, topic, OpenFrom) == START_MS


class TestWhatIsLeftBehind:
    @pytest.mark.parametrize("seconds", [(10, 60), (60, 10)])
    def test_the_first_hold_that_ends_is_due(
        self, store: OpenStore, topic: Topic, group: Group, seconds: tuple[int, int]
    ) -> None:
        other = store.group("other", meets=[topic])
        store.send(topic)
        received(
            store,
            a_receive(group, topic, invisible_ms=seconds[0] * SECOND),
            a_receive(other, topic, invisible_ms=seconds[1] * SECOND),
        )
        assert store.due_ms == START_MS + 10 * SECOND

    def test_the_history(self, store: OpenStore, topic: Topic) -> None:
        group = store.group("kept", meets=[topic], history=HistoryLevel.ALL)
        store.send(topic)
        assert len(store.receive(group, topic)) == 1
        assert store.history(group) == [("RECEIVE", "READY", "INFLIGHT", 1)]

    def test_the_receipt_handle_names_the_message(self, store: OpenStore, topic: Topic, group: Group) -> None:
        store.send(topic)
        (held,) = store.receive(group, topic)
        receipt = decode_receipt(held.receipt_handle, held.stored.message.message_id)
        assert receipt.id_bits != 0
