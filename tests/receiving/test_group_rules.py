"""The rules of open message groups: what a search takes of each, and where each continues."""

from __future__ import annotations

from typing import Any

import pytest

from popserver.catalog.progress import QueueToScan
from popserver.fifo.positions import MessageGroupKey, Opened
from popserver.filters import Filter, sql, tags
from popserver.messages.by_key import MessageRow
from popserver.model.names import Resource
from popserver.model.topic import MessageQueue, MessageType, Topic, message_key
from popserver.receiving import message_groups
from popserver.receiving.batch import Candidate, Judged, OpenGroup, ReceiveBatch
from popserver.receiving.message_groups import _Part, _ToJudge
from tests.support.builders import in_order
from tests.support.open_store import OpenStore, ids

QUEUE, TOPIC_ID = 5, 2
TOPIC = Topic(TOPIC_ID, Resource("", "orders"), (MessageQueue(QUEUE, 0),), (MessageType.FIFO,), 0)
ALL, TAGGED, SQL = tags.parse("*"), tags.parse("A || B"), sql.parse("a = 1")


def a_queue(next_offset: int = 100, end_offset: int = 100, min_offset: int = 0) -> QueueToScan:
    return QueueToScan(1, QUEUE, next_offset, 0, min_offset, end_offset, None, 1, has_others=False)


def a_batch(wanted: Filter = ALL, behind: dict[int, bool] | None = None) -> ReceiveBatch:
    group: Any = None
    judged = Judged({}, {key(offset): verdict for offset, verdict in (behind or {}).items()})
    return ReceiveBatch(group, TOPIC, wanted, 32, 0, True, True, False, {}, judged=judged)


def key(offset: int) -> int:
    return message_key(QUEUE, offset)


def opened(name: str, next_offset: int = 0) -> Opened:
    return Opened(QUEUE, name, next_offset, 0, 0)


def key_of(name: str) -> MessageGroupKey:
    return MessageGroupKey(TOPIC_ID, QUEUE, name)


def row(offset: int, name: str, tag: str | None = None) -> _ToJudge:
    return _ToJudge(key(offset), name, tag)


def part(name: str, offsets: list[int], next_offset: int | None) -> _Part:
    return _Part(key_of(name), [key(each) for each in offsets], next_offset)


class TestWhatIsTaken:
    @staticmethod
    def shares(
        rows: list[_ToJudge],
        share: int,
        limit: int,
        *names: str,
        batch: ReceiveBatch | None = None,
        queue: QueueToScan | None = None,
    ) -> list[_Part]:
        groups = [opened(name) for name in names or ("a", "b")]
        return message_groups._shares_of(
            batch or a_batch(), groups, {QUEUE: queue or a_queue()}, rows, share=share, limit=limit
        )

    def test_is_all_of_each_group_if_there_are_few(self) -> None:
        rows = [row(1, "a"), row(4, "a"), row(2, "b")]
        assert self.shares(rows, 8, 16) == [part("a", [1, 4], None), part("b", [2], None)]

    def test_is_a_share_of_each_group(self) -> None:
        rows = [row(1, "a"), row(4, "a"), row(2, "b")]
        assert self.shares(rows, 2, 16) == [part("a", [1, 4], 5), part("b", [2], None)]
        assert self.shares([row(1, "a"), row(4, "a"), row(6, "a"), row(2, "b")], 2, 16) == [
            part("a", [1, 4], 6),
            part("b", [2], None),
        ]

    def test_ends_with_the_limit(self) -> None:
        rows = [row(1, "a"), row(4, "a"), row(2, "b"), row(3, "b")]
        assert self.shares(rows, 8, 2) == [part("a", [1, 4], None)]
        assert self.shares(rows, 8, 3) == [part("a", [1, 4], None), part("b", [2], 3)]

    def test_of_the_last_group_that_was_read_continues_after_it(self) -> None:
        """The limit has cut the rows off: more of the group may follow."""
        rows = [row(1, "a"), row(2, "b")]
        assert self.shares(rows, 8, 2, "a", "b", "c") == [part("a", [1], None), part("b", [2], 3)]

    def test_of_a_group_without_messages_is_nothing(self) -> None:
        assert self.shares([row(2, "b")], 8, 16) == [part("a", [], None), part("b", [2], None)]

    def test_leaves_the_row_of_a_group_while_its_queue_has_unread_messages(self) -> None:
        queue = a_queue(next_offset=50, end_offset=60)
        rows = [row(1, "a")]
        assert self.shares(rows, 8, 16, queue=queue) == [part("a", [1], 50), part("b", [], None)]

    def test_is_what_the_filter_accepts(self) -> None:
        rows = [row(1, "a", "A"), row(2, "a", "C"), row(3, "a", "B"), row(4, "a"), row(5, "b", "C")]
        assert self.shares(rows, 8, 16, batch=a_batch(TAGGED)) == [part("a", [1, 3], None), part("b", [], None)]

    def test_by_a_filter_is_searched_for_among_eight_times_as_many(self) -> None:
        many = [row(offset, "a", "C") for offset in range(16)]
        assert self.shares(many, 2, 4, batch=a_batch(TAGGED)) == [part("a", [], 16), part("b", [], None)]
        assert self.shares(many[:15], 2, 4, batch=a_batch(TAGGED)) == [part("a", [], None), part("b", [], None)]
        many = [row(offset, "a", "C") for offset in range(31)] + [row(99, "b", "C")]
        assert self.shares(many, 8, 4, batch=a_batch(TAGGED)) == [part("a", [], None), part("b", [], 100)]

    def test_ends_at_the_first_message_that_a_sql_filter_has_not_judged(self) -> None:
        rows = [row(1, "a"), row(2, "a"), row(3, "a"), row(4, "a"), row(5, "b")]
        batch = a_batch(SQL, {1: True, 2: False, 4: True, 5: True})
        assert self.shares(rows, 8, 16, batch=batch) == [part("a", [1], 3), part("b", [5], None)]


@pytest.mark.parametrize(
    ("at", "queue", "is_taken", "continues"),
    [
        (10, a_queue(50, 60), True, 50),
        (10, a_queue(50, 60), False, None),
        (10, a_queue(50, 50), True, None),
        (50, a_queue(50, 60), False, None),
        (51, a_queue(50, 60), False, 51),
        (51, a_queue(50, 50), True, 51),
    ],
)
def test_a_group_without_messages_up_to_the_scan(
    at: int, queue: QueueToScan, is_taken: bool, continues: int | None
) -> None:
    assert message_groups._at_the_scan(queue, opened("a", at), is_taken=is_taken) == continues


@pytest.mark.parametrize(("at", "min_offset", "first"), [(3, 0, 3), (3, 3, 3), (3, 7, 7)])
def test_a_group_is_read_from_its_position_to_the_scan(at: int, min_offset: int, first: int) -> None:
    bounds = message_groups._bounds(4, opened("a", at), a_queue(50, 60, min_offset))
    assert bounds == (4, key(first), key(50), "a")


def candidate(offset: int, *, has_delivery: bool = False) -> Candidate:
    values: dict[str, Any] = dict.fromkeys(MessageRow._fields)
    return Candidate(MessageRow(**values | {"message_key": key(offset)}), 1, key_of("a"), has_delivery)


@pytest.mark.parametrize(
    ("granted", "next_offset"),
    [([1, 2, 3], 9), ([1, 2], 3), ([1], 2), ([], 1), ([2, 3], 1), ([1, 3], 2)],
)
def test_a_group_continues_at_the_first_message_that_was_not_granted(granted: list[int], next_offset: int) -> None:
    open_group = OpenGroup(key_of("a"), [candidate(each) for each in (1, 2, 3)], 9, stays_open=True)
    assert message_groups._next_offset(open_group, 9, {key(each) for each in granted}) == next_offset


def test_messages_that_have_deliveries_do_not_hold_a_group_back() -> None:
    found = [candidate(1, has_delivery=True), candidate(2, has_delivery=True)]
    open_group = OpenGroup(key_of("a"), found, 9, stays_open=False)
    assert message_groups._next_offset(open_group, 9, {key(1)}) == 9


@pytest.mark.parametrize(
    ("wanted", "tag", "is_accepted"),
    [(ALL, None, True), (ALL, "C", True), (TAGGED, "A", True), (TAGGED, "C", False), (TAGGED, None, False)],
)
def test_a_tag_decides_at_once(wanted: Filter, tag: str | None, is_accepted: bool) -> None:
    assert message_groups._is_accepted(a_batch(wanted, {1: not is_accepted}), row(1, "a", tag)) is is_accepted


def test_a_sql_filter_decides_what_it_has_judged() -> None:
    batch = a_batch(SQL, {1: True, 2: False})
    assert [message_groups._is_accepted(batch, row(each, "a")) for each in (1, 2, 3)] == [True, False, None]


def test_many_open_groups_with_few_messages_fill_one_receive(store: OpenStore) -> None:
    topic = store.topic(accepts=(MessageType.FIFO,))
    group = store.group(meets=[topic])
    names = [f"g{number}" for number in range(20)]
    store.send(topic, [each for name in names for each in in_order(name)])
    held = store.receive(group, topic, 20)
    later = [each for name in names for each in in_order(name)]
    store.send(topic, later)
    assert store.receive(group, topic, 32) == []
    store.ack(group, *held)
    assert sorted(ids(store.receive(group, topic, 32))) == sorted(each.message_id for each in later)
