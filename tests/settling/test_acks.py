"""Acks of many holds at once: in which steps, what the history keeps, and what a refused one among them costs."""

from __future__ import annotations

import random
from typing import Any

import pytest

from popserver.delivery import deliveries
from popserver.engine import transaction
from popserver.engine.transaction import Transaction
from popserver.model.errors import InvalidReceiptHandle
from popserver.model.group import Group, HistoryLevel
from popserver.model.handles import Receipt
from popserver.model.topic import MessageType, Topic, queue_of
from popserver.settling import ack
from popserver.settling.ack import Ack
from tests.support.builders import in_order
from tests.support.open_store import MINUTE, START_MS, OpenStore, receipt_of
from tests.support.plans import Plans

pytestmark = pytest.mark.timeout(14)  # what is outdated is repeated, without end


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    store.topic("another")
    return store.topic(accepts=(MessageType.NORMAL, MessageType.FIFO))


@pytest.fixture
def group(store: OpenStore, topic: Topic) -> Group:
    store.group("another", meets=[topic])
    return store.group(meets=[topic], history=HistoryLevel.NONE)


def held_of(store: OpenStore, group: Group, topic: Topic, *batch: Any) -> list[Receipt]:
    for each in batch or (4,):
        store.send(topic, each)
    return [receipt_of(each) for each in store.receive(group, topic, invisible_ms=MINUTE)]


def told(store: OpenStore, group: Group) -> list[tuple[Any, ...]]:
    columns = "message_key, event, from_state, to_state, attempt, client_id, reason, at_ms"
    found = store.rows(f"SELECT {columns} FROM history WHERE group_id = {group.group_id} ORDER BY history_id")
    return [tuple(each) for each in found if each.event != "RECEIVE"]


class TestSteps:
    @pytest.fixture(autouse=True)
    def steps_of_three(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for each in (ack, transaction):
            monkeypatch.setattr(each, "STEP_ROWS_MAX", 3)

    @staticmethod
    def steps(*requests: list[int], in_order: bool = True, others: tuple[int, ...] = ()) -> list[list[int]]:
        """The keys of each step. `others` are receipts of the other kind, in each request."""
        wishes: Any = [
            Ack(
                None,  # type: ignore[arg-type]
                [
                    *(Receipt(1, each, 1, 0, in_order=in_order) for each in keys),
                    *(Receipt(1, each, 1, 0, in_order=not in_order) for each in others),
                ],
            )
            for keys in requests
        ]
        return [[each.message_key for each in step] for step in ack._steps(wishes, in_order=in_order)]

    @pytest.mark.parametrize("in_order", [True, False])
    def test_each_has_as_many_as_it_may(self, in_order: bool) -> None:
        assert self.steps([3, 1, 2], in_order=in_order) == [[1, 2, 3]]
        assert self.steps([3, 1], [2], in_order=in_order) == [[1, 2, 3]]
        assert self.steps([3, 1], [2, 4], in_order=in_order) == [[1, 3], [2, 4]]
        assert self.steps([4, 3, 2, 1], [9], [8, 7], in_order=in_order) == [[1, 2, 3], [4], [7, 8, 9]]
        assert self.steps([1], [4, 3, 2, 5], in_order=in_order) == [[1], [2, 3, 4], [5]]

    def test_the_other_kind_is_left_out(self) -> None:
        assert self.steps([1, 2], others=(8, 9)) == [[1, 2]]
        assert self.steps([], others=(8, 9)) == []
        assert self.steps([], []) == []

    def test_what_is_named_twice_counts_once(self) -> None:
        assert self.steps([1, 1, 2, 2, 3]) == [[1, 2, 3]]

    @pytest.mark.parametrize("message_group", [None, "g"])
    def test_more_than_a_step_is_done_whole(
        self, store: OpenStore, group: Group, topic: Topic, message_group: str | None
    ) -> None:
        held = held_of(store, group, topic, in_order("g", 8) if message_group else 8)
        assert store.do(ack.ack, Ack(group, held[:2]), Ack(group, held[2:])) == [[None] * 2, [None] * 6]
        assert store.one_value("SELECT COUNT(*) FROM delivery") == 0
        assert store.receive(group, topic) == []


@pytest.mark.parametrize("level", HistoryLevel)
@pytest.mark.parametrize("message_group", [None, "g"])
def test_the_history_has_those_that_were_committed(
    store: OpenStore, topic: Topic, level: HistoryLevel, message_group: str | None
) -> None:
    group = store.group(meets=[topic], history=level)
    store.send(topic, in_order("g", 3) if message_group else 3)
    held = [receipt_of(each) for each in store.receive(group, topic, client_id="c7")]
    store.now_ms += 9
    wrong = held[2]._replace(hold_id=held[2].hold_id ^ 1)
    outcomes = store.ack(group, held[1], wrong, held[0])
    assert [type(each) for each in outcomes] == [type(None), InvalidReceiptHandle, type(None)]
    keys = [each.message_key for each in held[:2]]
    rows = [(key, "ACK", "INFLIGHT", "COMMIT", 1, "c7", "", START_MS + 9) for key in keys]
    assert sorted(told(store, group)) == (rows if level is HistoryLevel.ALL else [])


@pytest.mark.parametrize("level", HistoryLevel)
def test_the_history_has_whole_runs(store: OpenStore, topic: Topic, level: HistoryLevel) -> None:
    group = store.group(meets=[topic], history=level)
    held = held_of(store, group, topic, in_order("g", 2))
    assert store.ack(group, *held) == [None, None]
    acked = [(each.message_key, "ACK") for each in held] if level is HistoryLevel.ALL else []
    assert [each[:2] for each in told(store, group)] == acked


def test_the_history_has_acks_before_their_turn(store: OpenStore, topic: Topic) -> None:
    group = store.group(meets=[topic], history=HistoryLevel.ALL)
    first, second, third = held_of(store, group, topic, in_order("g", 3))
    assert store.ack(group, third, second) == [None, None]
    assert store.ack(group, first) == [None]
    assert [each[:4] for each in told(store, group)] == [
        (second.message_key, "PROVISIONAL_ACK", "INFLIGHT", "READY"),
        (third.message_key, "PROVISIONAL_ACK", "INFLIGHT", "READY"),
        (first.message_key, "ACK", "INFLIGHT", "COMMIT"),
        (second.message_key, "SETTLE", "READY", "COMMIT"),
        (third.message_key, "SETTLE", "READY", "COMMIT"),
    ]


def test_the_requests_of_a_group_are_done_together(store: OpenStore, group: Group, topic: Topic) -> None:
    held = held_of(store, group, topic, 3)
    other = store.group("other", meets=[topic])
    theirs = [receipt_of(each) for each in store.receive(other, topic)]
    plans = Plans(store)
    with plans.caught():
        store.do(ack.ack, Ack(group, held[:1]), Ack(other, theirs), Ack(group, held[1:]))
    assert plans.count == 2


@pytest.mark.parametrize("level", [HistoryLevel.NONE, HistoryLevel.ALL])
@pytest.mark.parametrize("is_late", [False, True])
def test_each_group_of_one_transaction_has_its_own_outcomes(
    store: OpenStore, topic: Topic, level: HistoryLevel, is_late: bool
) -> None:
    groups = [store.group(name, meets=[topic], history=level) for name in ("a", "b", "c")]
    store.send(topic, 2)
    store.send(topic, in_order("g", 2))
    held = {each: [receipt_of(one) for one in store.receive(each, topic, invisible_ms=MINUTE)] for each in groups}
    assert {len(each) for each in held.values()} == {4}
    store.now_ms += MINUTE if is_late else 0
    wrong = [each._replace(hold_id=each.hold_id ^ 1) for each in held[groups[1]]]
    wishes = [Ack(groups[2], held[groups[2]]), Ack(groups[1], wrong), Ack(groups[0], held[groups[0]])]
    outcomes = store.do(ack.ack, *wishes, Ack(groups[2], wrong[:1]))
    refused = [[outcome is not None for outcome in each] for each in outcomes if isinstance(each, list)]
    assert refused == [[is_late] * 4, [True] * 4, [is_late] * 4, [True]]
    left = store.rows("SELECT group_id, COUNT(*) FROM delivery GROUP BY group_id ORDER BY group_id")
    expected = groups if is_late else groups[1:2]
    assert [tuple(each) for each in left] == [(each.group_id, 4) for each in expected]


def cost(store: OpenStore, group: Group, receipts: list[Receipt]) -> int:
    plans = Plans(store)
    with plans.caught():
        store.ack(group, *receipts)
    return plans.count


def test_only_what_is_refused_is_looked_up(store: OpenStore, group: Group, topic: Topic) -> None:
    held = held_of(store, group, topic, 16)
    wrong = [each._replace(hold_id=each.hold_id ^ 1) for each in held]
    assert cost(store, group, [*held[:1], wrong[14]]) == cost(store, group, [*held[1:9], wrong[15]])


@pytest.mark.parametrize("is_wrong", [False, True])
def test_one_statement_ends_whole_runs_or_changes_nothing(
    store: OpenStore, group: Group, topic: Topic, is_wrong: bool
) -> None:
    held = held_of(store, group, topic, in_order("g", 2))
    named = [(group.group_id, each.message_key, each.hold_id, queue_of(each.message_key)) for each in held]
    if is_wrong:
        named[1] = (*named[1][:2], named[1][2] ^ 1, named[1][3])
    store.database.begin(store.conn)
    done = deliveries.commit_whole_runs(Transaction.at(store.conn, store.now_ms), named)
    store.conn.exec_driver_sql("COMMIT")
    assert (done.held, done.all_of_runs, done.topics, done.ended) == ((1, 2, 1, 0) if is_wrong else (2, 2, 1, 2))
    assert (done.first_topic, done.last_topic) == (topic.topic_id, topic.topic_id)
    assert store.one_value("SELECT COUNT(*) FROM delivery") == (2 if is_wrong else 0)


def test_acks_that_end_a_message_group_wake_its_topic_for_what_is_behind(
    store: OpenStore, group: Group, topic: Topic
) -> None:
    held = held_of(store, group, topic, in_order("g", 2))
    store.send(topic, in_order("g", 2))
    assert store.receive(group, topic) == []
    assert store.ack(group, held[0]) == [None]
    assert store.rings == set()
    assert store.ack(group, held[1]) == [None]
    assert store.rings == {topic.topic_id}
    assert len(store.receive(group, topic)) == 2


def test_of_several_topics_each_is_woken(store: OpenStore, group: Group) -> None:
    topics = [store.topic(f"t{number}", accepts=(MessageType.FIFO,)) for number in range(3)]
    held: list[Receipt] = []
    for each in topics:
        store.meet(group, each)
        held += held_of(store, group, each, in_order("g", 1, each.name))
        store.send(each, in_order("g", 1, each.name))
        assert store.receive(group, each) == []
    for count in (2, 1):
        mine, held = held[:count], held[count:]
        assert store.ack(group, *mine) == [None] * count
        assert store.rings == {each.topic_id for each in topics[:count]}
        topics = topics[count:]


@pytest.mark.parametrize("of_whole_runs", [True, False])
def test_in_message_groups_any_order_ends_the_same(store: OpenStore, group: Group, of_whole_runs: bool) -> None:
    chance = random.Random(7)
    topic = store.topic("ordered", accepts=(MessageType.FIFO,))
    store.meet(group, topic)
    held = held_of(store, group, topic, *(in_order(name, 4, topic.name) for name in "abc"))
    chance.shuffle(held)
    for start in range(0, 12, 12 if of_whole_runs else 5):
        assert set(store.ack(group, *held[start : start + (12 if of_whole_runs else 5)])) == {None}
    assert store.rows("SELECT * FROM delivery") == []
