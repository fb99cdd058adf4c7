"""The rules of a search: its shares, its steps, what a filter has judged, and who gets which message."""

from __future__ import annotations

from typing import Any

import pytest

from popserver.engine.transaction import Transaction
from popserver.fifo.positions import MessageGroupKey
from popserver.filters import tags
from popserver.messages.by_key import DEFERRED, MessageRow
from popserver.model.group import Group
from popserver.model.names import Resource
from popserver.model.retry import Holder
from popserver.model.topic import MessageQueue, MessageType, Topic
from popserver.receiving import answers
from popserver.receiving import batch as batches
from popserver.receiving import receive as receives
from popserver.receiving.batch import (
    NOTHING_JUDGED,
    Candidate,
    Judged,
    KeyRange,
    Portion,
    Receive,
    Rotations,
    SourceShares,
    half_of,
)

NOW_MS = 1_000_000
A, B = (MessageGroupKey(2, 3, name) for name in "ab")


def a_row(key: int, body: bytes = b"") -> MessageRow:
    return MessageRow(key, b"", 0, 0, None, None, None, None, None, "NORMAL", "IDENTITY", "", None, None, body)


def found(key: int, group_key: MessageGroupKey | None = None, attempt: int = 1, body: bytes = b"") -> Candidate:
    return Candidate(a_row(key, body), attempt, group_key)


class TestHalf:
    @pytest.mark.parametrize(("capacity", "half"), [(0, 0), (2, 1), (3, 1), (32, 16)])
    def test_is_rounded_down(self, capacity: int, half: int) -> None:
        assert [half_of(capacity, rotation) for rotation in range(3)] == [half] * 3

    def test_of_one_alternates(self) -> None:
        assert [half_of(1, rotation) for rotation in range(5)] == [0, 1, 0, 1, 0]


class TestShares:
    @pytest.mark.parametrize(
        ("capacity", "rotation", "again_found", "new_waits", "shares"),
        [
            (32, 0, 5, True, (32, 16, 5, 5, 11, 23)),
            (32, 0, 20, True, (32, 16, 20, 8, 8, 20)),
            (32, 0, 20, False, (32, 32, 20, 16, 16, 16)),
            (7, 0, 7, True, (7, 3, 7, 1, 2, 5)),
            (7, 3, 7, True, (7, 3, 7, 1, 2, 5)),
            (2, 0, 2, True, (2, 1, 2, 0, 1, 1)),
            (2, 2, 2, True, (2, 1, 2, 1, 1, 0)),
            (3, 2, 3, True, (3, 1, 3, 1, 1, 1)),
            (1, 0, 1, True, (1, 0, 1, 0, 0, 0)),
            (1, 1, 1, True, (1, 1, 1, 0, 1, 1)),
            (1, 3, 1, True, (1, 1, 1, 1, 1, 0)),
            (1, 0, 1, False, (1, 1, 1, 0, 1, 1)),
            (1, 2, 1, False, (1, 1, 1, 1, 1, 0)),
        ],
    )
    def test_depend_on_what_waits(
        self, capacity: int, rotation: int, again_found: int, new_waits: bool, shares: tuple[int, ...]
    ) -> None:
        assert SourceShares.of(capacity, rotation, again_found, new_waits=new_waits) == shares

    @pytest.mark.parametrize(
        ("shares", "in_groups", "unused", "new_max"),
        [
            (SourceShares(32, 16, 20, 8, 8, 20), 0, 0, 16),
            (SourceShares(32, 16, 20, 8, 8, 20), 10, 0, 14),
            (SourceShares(32, 16, 5, 5, 11, 23), 4, 0, 23),
            (SourceShares(32, 16, 5, 5, 11, 23), 14, 0, 13),
            (SourceShares(32, 16, 20, 8, 8, 20), 0, 17, 15),
            (SourceShares(32, 16, 20, 8, 8, 20), 20, 20, 0),
        ],
    )
    def test_leave_the_rest_to_new_messages(
        self, shares: SourceShares, in_groups: int, unused: int, new_max: int
    ) -> None:
        assert shares.new_max(in_groups, unused) == new_max


class TestRotations:
    def test_number_the_receives_of_each_pair(self) -> None:
        rotations = Rotations()
        numbers = [next(rotations[pair]) for pair in ((1, 1), (1, 1), (1, 2), (2, 1), (1, 1), (1, 2))]
        assert numbers == [0, 1, 0, 0, 2, 1]

    def test_begin_anew_beyond_so_many_pairs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(batches, "PAIRS_MAX", 2)
        rotations = Rotations()
        for pair in ((1, 1), (1, 2), (1, 1), (1, 2)):
            next(rotations[pair])
        assert (next(rotations[1, 1]), len(rotations)) == (2, 2)
        assert (next(rotations[1, 3]), len(rotations)) == (0, 1)
        assert next(rotations[1, 1]) == 0


class TestWhatAFilterHasJudged:
    RANGE = KeyRange(10, 20, (11, 12, 15, 19))

    @pytest.mark.parametrize(
        ("key", "accepted"),
        [(10, (11, 12, 15, 19)), (11, (11, 12, 15, 19)), (12, (12, 15, 19)), (16, (19,)), (20, ())],
    )
    def test_goes_on_from_a_key(self, key: int, accepted: tuple[int, ...]) -> None:
        assert self.RANGE.from_on(key) == KeyRange(key, 20, accepted)

    @pytest.mark.parametrize("key", [9, 21])
    def test_says_nothing_of_other_keys(self, key: int) -> None:
        assert self.RANGE.from_on(key) is None

    def test_is_known_by_queue(self) -> None:
        judged = Judged({3: self.RANGE}, {})
        assert judged.range_of(3, 12) == KeyRange(12, 20, (12, 15, 19))
        assert judged.range_of(4, 12) is None
        assert NOTHING_JUDGED.range_of(3, 12) is None


@pytest.mark.parametrize(
    ("sizes", "steps"),
    [
        ([32], [[0]]),
        ([500, 500], [[0, 1]]),
        ([500, 501], [[0], [1]]),
        ([1_000, 1], [[0], [1]]),
        ([2_000, 1], [[0], [1]]),
        ([400, 400, 300, 700, 1], [[0, 1], [2, 3], [4]]),
        ([999, 1, 1], [[0, 1], [2]]),
    ],
)
def test_receives_share_searches_of_limited_size(sizes: list[int], steps: list[list[int]]) -> None:
    assert [*receives._in_steps(range(len(sizes)), sizes)] == steps


class TestTheOrderOfGrants:
    def test_is_failed_messages_first(self) -> None:
        again, others = [found(1), found(2, attempt=2)], [found(3), found(4)]
        assert receives._interleaved(again, others) == [*again, *others]
        assert receives._interleaved([], others) == others

    def test_alternates_if_one_of_them_is_large(self) -> None:
        failed = [found(1, attempt=2, body=DEFERRED), found(2, attempt=3), found(3, attempt=2)]
        unused = found(4)
        others = [found(5), found(6, body=DEFERRED)]
        ordered = receives._interleaved([failed[0], unused, *failed[1:]], others)
        assert [each.row.message_key for each in ordered] == [1, 4, 2, 5, 3, 6]


def a_receive(batch_size: int, *, heads_only: bool = False, client_id: str = "c1", **more: Any) -> Receive:
    group: Any = Group(*[1] * len(Group._fields))  # type: ignore[arg-type]
    topic: Any = more.pop("topic", None)
    return Receive(
        group,
        topic,
        tags.parse("*"),
        batch_size,
        30_000,
        Holder.SIMPLE,
        client_id,
        heads_only=heads_only,
        **({"rotation": 0} | more),
    )


class TestWhoGetsWhat:
    @staticmethod
    def distributed(
        sizes: list[int], candidates: list[Candidate], *, heads_only: bool = False
    ) -> tuple[list[list[int]], list[int]]:
        """The keys of each receive, and those that nobody got."""
        conn: Any = None
        tx = Transaction(conn, NOW_MS, NOW_MS, NOW_MS, careful=False, has_other_writers=False)
        portion = Portion("c9", [a_receive(size, heads_only=heads_only) for size in sizes], candidates)
        slots, left = receives._distribute(tx, portion)
        assert {client_id for client_id, _ in left} <= {"c9"}
        for slot, size in zip(slots, sizes, strict=True):
            assert slot.capacity + len(slot.grants) == size
            for grant in slot.grants:
                assert grant.request is slot.request
                assert grant.receipt.ends_at_ms == NOW_MS + 30_000
                assert grant.receipt.message_key == grant.found.row.message_key
                assert grant.receipt.in_order is (grant.found.group_key is not None)
        holds = [grant.receipt.hold_id for slot in slots for grant in slot.grants]
        assert len(set(holds)) == len(holds)
        keys = [[grant.found.row.message_key for grant in slot.grants] for slot in slots]
        return keys, [each.row.message_key for _, each in left]

    def test_receives_are_filled_one_after_the_other(self) -> None:
        assert self.distributed([2, 2], [found(1), found(2), found(3)]) == ([[1, 2], [3]], [])

    def test_messages_of_a_group_go_to_one_receive(self) -> None:
        candidates = [found(1), found(2, A), found(3, A), found(4, B), found(5, A)]
        assert self.distributed([2, 3], candidates) == ([[1, 2], [4]], [3, 5])

    def test_a_group_stays_with_its_receive_while_that_has_room(self) -> None:
        candidates = [found(1, A), found(2, A), found(3, B), found(4, A)]
        assert self.distributed([3, 3], candidates) == ([[1, 2, 3], []], [4])

    def test_after_one_that_waits_all_of_its_group_wait(self) -> None:
        candidates = [found(1, A), found(2, A), found(3), found(4, A)]
        assert self.distributed([1, 3], candidates) == ([[1], [3]], [2, 4])

    def test_one_that_takes_heads_gets_one_of_each_group(self) -> None:
        candidates = [found(1, A), found(2, A), found(3, B), found(4), found(5, B)]
        assert self.distributed([4], candidates, heads_only=True) == ([[1, 3, 4]], [2, 5])


def test_holds_are_secret_numbers_of_63_bits() -> None:
    holds = receives.new_holds(100)
    assert len(set(holds)) == 100
    assert all(0 <= each < 2**63 for each in holds)
    assert max(holds) >= 2**62
    assert receives.new_holds(0) == []


class TestASearch:
    @staticmethod
    def topic_of(name: str = "orders", accepts: tuple[MessageType, ...] = (MessageType.NORMAL,)) -> Topic:
        queues = tuple(MessageQueue(1, number) for number in range(4))
        fields: dict[str, Any] = dict.fromkeys(Topic._fields, 5)
        return Topic(**fields | {"name": Resource("", name), "queues": queues, "accepts": accepts})

    def test_of_several_receives_wants_what_they_want_together(self) -> None:
        topic = self.topic_of()
        judged = Judged({}, {1: True})
        several = [a_receive(3, topic=topic, rotation=9, searches=2), a_receive(4, topic=topic, judged=judged)]
        batch = receives.receive_batch_of(several)
        assert (batch.capacity, batch.rotation, batch.judged) == (7, 9 // 2 + 2, judged)
        assert (batch.group, batch.topic, batch.wanted) == (several[0].group, topic, several[0].wanted)
        group_id = several[0].group.group_id
        assert batch.parameters == {"group_id": group_id, "topic_id": 5, "ready_from": 0, "open_from": 0}

    @pytest.mark.parametrize(
        ("name", "accepts", "keeps_order", "takes_groups"),
        [
            ("orders", (MessageType.NORMAL,), True, False),
            ("orders", (MessageType.NORMAL, MessageType.FIFO), True, True),
            ("%DLQ%billing", (MessageType.NORMAL, MessageType.FIFO), False, False),
            ("%RETRY%billing", (MessageType.FIFO,), False, False),
        ],
    )
    def test_keeps_the_order_of_message_groups_but_not_in_the_server_s_own_topics(
        self, name: str, accepts: tuple[MessageType, ...], keeps_order: bool, takes_groups: bool
    ) -> None:
        batch = receives.receive_batch_of([a_receive(1, topic=self.topic_of(name, accepts))])
        assert (batch.keeps_order, batch.takes_groups) == (keeps_order, takes_groups)

    @pytest.mark.parametrize(("rotation", "by_priority"), [(0, True), (6, True), (7, False), (8, True), (15, False)])
    def test_goes_by_priority_but_for_one_of_eight(self, rotation: int, by_priority: bool) -> None:
        topic = self.topic_of(accepts=(MessageType.PRIORITY,))
        assert receives.receive_batch_of([a_receive(1, topic=topic, rotation=rotation)]).by_priority is by_priority
        topic = self.topic_of()
        assert not receives.receive_batch_of([a_receive(1, topic=topic, rotation=rotation)]).by_priority


MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("sizes", "bytes_left", "kept", "used"),
    [
        ([], 100, 0, 0),
        ([2 * MIB, 2 * MIB], 32 * MIB, 2, 4 * MIB),
        ([2 * MIB, 2 * MIB, 1], 32 * MIB, 2, 4 * MIB),
        ([2 * MIB, 2 * MIB + 1], 32 * MIB, 1, 2 * MIB),
        ([5 * MIB, 1], 32 * MIB, 1, 5 * MIB),
        ([60, 40, 1], 100, 2, 100),
        ([60, 41], 100, 1, 60),
        ([200, 1], 100, 1, 200),
        ([1], 1, 1, 1),
        ([1], 0, 0, 0),
        ([1], -5, 0, 0),
        ([0, 0, 0], 1, 3, 0),
    ],
)
def test_an_answer_has_so_many_bytes_and_at_least_one_message(
    sizes: list[int], bytes_left: int, kept: int, used: int
) -> None:
    conn: Any = None
    tx = Transaction(conn, 1, 1, 1, careful=False, has_other_writers=False, answer_bytes=bytes_left)
    assert answers._fitting(tx, sizes) == kept
    assert tx.answer_bytes == bytes_left - used
