"""What a SQL filter has to judge next, as far as the search of a receive may need it."""

from __future__ import annotations

import pytest

from popserver.catalog.progress import QueueToScan
from popserver.filters import sql
from popserver.messages.ranges import Unjudged, Work
from popserver.model.topic import message_key
from popserver.receiving import filter_fetch
from popserver.receiving.batch import NOTHING_JUDGED, Judged, KeyRange
from popserver.receiving.filter_fetch import FetchedMessages

ONE, TWO, THREE = 1, 2, 3
WANTED = sql.parse("a = 1")


def a_queue(queue_id: int, next_offset: int = 0, end_offset: int = 10, min_offset: int = 0) -> QueueToScan:
    return QueueToScan(7, queue_id, next_offset, 0, min_offset, end_offset, None, None, has_others=False)


def a_range(queue_id: int, first: int, end: int, *accepted: int) -> KeyRange:
    """By offsets."""
    return KeyRange(
        message_key(queue_id, first), message_key(queue_id, end), [message_key(queue_id, at) for at in accepted]
    )


QUEUES = [a_queue(each) for each in (ONE, TWO, THREE)]


class TestWhatIsKnownOfAQueue:
    def test_begins_at_the_group_s_progress(self) -> None:
        known = Judged({ONE: a_range(ONE, 2, 8, 3, 5)}, {})
        assert filter_fetch._judged_range(known, a_queue(ONE, 4)) == a_range(ONE, 4, 8, 5)

    def test_begins_where_the_queue_begins_if_that_is_later(self) -> None:
        assert filter_fetch._judged_range(NOTHING_JUDGED, a_queue(ONE, 2, min_offset=5)) == a_range(ONE, 5, 5)._replace(
            accepted=()
        )

    def test_is_nothing_elsewhere(self) -> None:
        known = Judged({TWO: a_range(TWO, 0, 8), ONE: a_range(ONE, 5, 8)}, {})
        nothing = a_range(ONE, 4, 4)._replace(accepted=())
        assert filter_fetch._judged_range(known, a_queue(ONE, 4)) == nothing


class TestWhatIsJudgedNext:
    @pytest.mark.parametrize(
        ("ranges", "count", "enough", "expected"),
        [
            ([a_range(ONE, 0, 0)], 4, 5, [a_range(ONE, 0, 4)]),
            ([a_range(ONE, 0, 0)], 100, 5, [a_range(ONE, 0, 10)]),
            ([a_range(ONE, 0, 7, 1)], 100, 5, [a_range(ONE, 7, 10)]),
            ([a_range(ONE, 0, 7, 1, 2, 3, 4, 5)], 100, 5, []),
            ([a_range(ONE, 0, 7, 1, 2, 3, 4)], 100, 5, [a_range(ONE, 7, 10)]),
            ([a_range(ONE, 0, 10)], 100, 5, []),
            ([a_range(ONE, 0, 6), a_range(TWO, 0, 0)], 7, 5, [a_range(ONE, 6, 10), a_range(TWO, 0, 3)]),
            ([a_range(ONE, 0, 6), a_range(TWO, 0, 0)], 4, 5, [a_range(ONE, 6, 10)]),
            ([a_range(ONE, 0, 10), a_range(THREE, 2, 2)], 1, 5, [a_range(THREE, 2, 3)]),
        ],
    )
    def test_follows_what_is_judged_in_the_order_of_the_queues(
        self, ranges: list[KeyRange], count: int, enough: int, expected: list[KeyRange]
    ) -> None:
        by_queue = {each.from_key >> 40: each for each in ranges}
        to_judge = filter_fetch._to_judge(QUEUES, by_queue, count, enough)
        assert to_judge == [each._replace(accepted=()) for each in expected]

    def test_is_counted(self) -> None:
        ranges = {ONE: a_range(ONE, 0, 4), THREE: a_range(THREE, 0, 12)}
        assert filter_fetch._unjudged(QUEUES, ranges) == 6
        assert filter_fetch._unjudged(QUEUES, {TWO: a_range(TWO, 0, 0), ONE: a_range(ONE, 0, 9)}) == 11
        assert filter_fetch._unjudged(QUEUES, {}) == 0


class TestTheMostUrgent:
    @pytest.mark.parametrize(
        ("ranges", "enough", "needed", "is_short"),
        [
            ({ONE: a_range(ONE, 0, 4, 1, 2)}, 2, [ONE], False),
            ({ONE: a_range(ONE, 0, 4, 1, 2)}, 3, [ONE], True),
            ({ONE: a_range(ONE, 0, 10, 1, 2)}, 3, [ONE], False),
            ({ONE: a_range(ONE, 0, 10, 1, 2), TWO: a_range(TWO, 0, 2, 1)}, 3, [ONE, TWO], False),
            ({ONE: a_range(ONE, 0, 10, 1, 2), TWO: a_range(TWO, 0, 2, 1)}, 2, [ONE], False),
            ({ONE: a_range(ONE, 0, 4, 1), TWO: a_range(TWO, 0, 10, 1, 2)}, 3, [ONE, TWO], True),
            ({TWO: a_range(TWO, 0, 4, 1), THREE: a_range(THREE, 0, 1, 0)}, 2, [TWO, THREE], True),
            ({TWO: a_range(TWO, 0, 10, 1), THREE: a_range(THREE, 0, 1, 0)}, 2, [TWO, THREE], False),
            ({}, 1, [], False),
        ],
    )
    def test_are_judged_first_and_the_others_left_out(
        self, ranges: dict[int, KeyRange], enough: int, needed: list[int], is_short: bool
    ) -> None:
        expected = {each: ranges[each] for each in needed}
        assert filter_fetch._most_urgent(QUEUES, ranges, enough) == (expected, is_short)


def fetched(
    known: dict[int, KeyRange],
    to_judge: list[KeyRange],
    rows: list[tuple[int, str | None, dict[str, str]]],
    *,
    is_all: bool = True,
    known_behind: dict[int, bool] | None = None,
    behind: tuple[tuple[int, str], ...] = (),
) -> FetchedMessages:
    of_groups = Unjudged([(key, None, {"a": value}) for key, value in behind], 10)
    return FetchedMessages(WANTED, known, to_judge, Unjudged(rows, 10), known_behind or {}, of_groups, is_all)


def a_message(queue_id: int, offset: int, value: str) -> tuple[int, str | None, dict[str, str]]:
    return message_key(queue_id, offset), None, {"a": value}


class TestTheVerdicts:
    KNOWN = {ONE: a_range(ONE, 2, 4, 3), TWO: a_range(TWO, 0, 0), THREE: a_range(THREE, 0, 9, 1)}
    NEXT = [a_range(ONE, 4, 10), a_range(TWO, 0, 5)]
    ROWS = [a_message(TWO, 1, "1"), a_message(ONE, 5, "1"), a_message(ONE, 6, "2"), a_message(TWO, 3, "2")]

    def test_are_added_to_what_was_known(self) -> None:
        for is_all in (True, False):
            found = filter_fetch.judge(fetched(self.KNOWN, self.NEXT, self.ROWS, is_all=is_all), Work())
            ranges = {ONE: a_range(ONE, 2, 10, 3, 5), TWO: a_range(TWO, 0, 5, 1), THREE: self.KNOWN[THREE]}
            assert found.judged == Judged(ranges, {})
            assert found.is_all is is_all

    def test_of_ranges_without_messages_are_that_there_are_none(self) -> None:
        found = filter_fetch.judge(fetched(self.KNOWN, self.NEXT, []), Work())
        assert found.judged.ranges[ONE] == a_range(ONE, 2, 10, 3)
        assert (found.judged.ranges[TWO], found.is_all) == (a_range(TWO, 0, 5), True)

    @pytest.mark.parametrize(
        ("judged", "ones", "twos", "is_all"),
        [
            (1, a_range(ONE, 2, 6, 3, 5), a_range(TWO, 0, 0), False),
            (2, a_range(ONE, 2, 7, 3, 5), a_range(TWO, 0, 0), False),
            (3, a_range(ONE, 2, 10, 3, 5), a_range(TWO, 0, 2, 1), False),
            (4, a_range(ONE, 2, 10, 3, 5), a_range(TWO, 0, 5, 1), True),
        ],
    )
    def test_end_where_the_work_ends(self, judged: int, ones: KeyRange, twos: KeyRange, is_all: bool) -> None:
        cost = WANTED.cost(None, {"a": "1"})
        for to_judge in (self.NEXT, self.NEXT[::-1]):
            work = Work(judged * cost)
            found = filter_fetch.judge(fetched(self.KNOWN, to_judge, self.ROWS), work)
            assert (found.judged.ranges[ONE], found.judged.ranges[TWO]) == (ones, twos)
            assert found.is_all is is_all
            assert work.left <= 0

    def test_of_the_first_message_of_a_range_is_enough_to_go_on(self) -> None:
        rows = [a_message(ONE, 4, "1"), a_message(ONE, 5, "1")]
        found = filter_fetch.judge(fetched(self.KNOWN, self.NEXT, rows), Work(1))
        assert found.judged.ranges[ONE] == a_range(ONE, 2, 5, 3, 4)

    def test_of_open_message_groups_are_kept_while_they_may_be_needed(self) -> None:
        known_behind = {11: True, 12: False, 13: True}
        behind = ((11, "2"), (12, "1"), (14, "1"), (15, "2"))
        found = filter_fetch.judge(fetched({}, [], [], known_behind=known_behind, behind=behind), Work())
        assert found.judged.behind == {11: True, 12: False, 14: True, 15: False}

    def test_of_open_message_groups_get_half_of_the_work(self) -> None:
        cost = WANTED.cost(None, {"a": "1"})
        behind = tuple((key, "1") for key in range(11, 15))
        work = Work(4 * cost)
        found = filter_fetch.judge(fetched(self.KNOWN, self.NEXT, self.ROWS, behind=behind), work)
        assert found.judged.behind == {11: True, 12: True}
        assert found.judged.ranges[ONE] == a_range(ONE, 2, 7, 3, 5)
        assert work.left == 0
