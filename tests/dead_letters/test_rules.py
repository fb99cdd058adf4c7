"""The rules of redrives: ids of plans, reasons, repairs, the ids of new messages, and the words of a selection."""

from __future__ import annotations

import pytest

from popserver.dead_letters import flow
from popserver.dead_letters.rules import (
    LetterSelection,
    RedriveItem,
    Repair,
    Selection,
    check_plan_id,
    check_reason,
    check_repair,
    message_id_of,
    with_marks,
)
from popserver.model.errors import BadRequest, MessageBodyEmpty, PopError
from popserver.model.message import id_to_bytes
from popserver.model.names import Resource
from popserver.model.states import Change

GROUP = Resource("", "billing")


@pytest.mark.parametrize("plan_id", ["p", "A-Z_a.z:0-9", "9" * 64])
def test_a_plan_id_is_one_word(plan_id: str) -> None:
    check_plan_id(plan_id)


@pytest.mark.parametrize("plan_id", ["", " ", "a b", "ä", "p\n", "p/1", "9" * 65])
def test_no_other_text_is_a_plan_id(plan_id: str) -> None:
    with pytest.raises(BadRequest, match="plan id"):
        check_plan_id(plan_id)


def test_a_reason_has_a_limit_and_no_control_character() -> None:
    check_reason("")
    check_reason("ü" * 1_024)
    with pytest.raises(BadRequest, match="1025 characters"):
        check_reason("x" * 1_025)
    with pytest.raises(BadRequest, match="control character"):
        check_reason("mended\n")


def test_a_new_plan_has_an_id_of_its_own() -> None:
    first, second = flow._new_plan_id(), flow._new_plan_id()
    assert first != second
    assert (first[:5], len(first)) == ("plan-", 21)
    check_plan_id(first)


@pytest.mark.parametrize(
    "repair",
    [
        Repair(),
        Repair(body=b"x"),
        Repair(tag=""),
        Repair(tag="A"),
        Repair(keys=()),
        Repair(keys=("k", "l")),
        Repair(properties={}),
        Repair(properties={"p": "v"}),
    ],
)
def test_a_repair_may_change_what_a_sender_may_set(repair: Repair) -> None:
    check_repair(7, repair)


@pytest.mark.parametrize(
    "repair",
    [
        Repair(body=b""),
        Repair(tag="a|b"),
        Repair(keys=(" ",)),
        Repair(properties={"": "v"}),
        Repair(body=bytes(4 * 1024 * 1024 + 1)),
    ],
)
def test_a_repair_keeps_to_the_limits_of_messages(repair: Repair) -> None:
    with pytest.raises(PopError, match="the repair of dead letter 7: ") as refused:
        check_repair(7, repair)
    assert type(refused.value) is not PopError
    assert (type(refused.value) is MessageBodyEmpty) is (repair.body == b"")


def test_an_order_says_what_it_changes() -> None:
    assert RedriveItem(1).change is Change.NONE
    assert RedriveItem(1, "why").reason == "why"
    assert (RedriveItem(1).reason, RedriveItem(1).repair) == ("", None)
    assert RedriveItem(1, repair=Repair()).change is Change.REPAIR


def test_a_new_message_names_its_parent_and_its_plan_beside_its_properties() -> None:
    given = {"p": "v", "popmq.redrive-plan": "older", "popmq.redrive-of": "older"}
    assert with_marks(given, "p1", "parent") == {
        "p": "v",
        "popmq.redrive-plan": "p1",
        "popmq.redrive-of": "parent",
    }
    assert given["popmq.redrive-plan"] == "older"


class TestTheIdOfANewMessage:
    def test_is_the_same_each_time(self) -> None:
        assert message_id_of("p1", 7, 0x0123_4567_89AB) == "010123456789ABA7D27EF7A833F5A26D98"

    def test_differs_by_plan_and_by_dead_letter(self) -> None:
        assert len({message_id_of(plan_id, letter, 5) for plan_id in ("p", "p1") for letter in (1, 11)}) == 4

    def test_begins_with_the_time_of_the_plan(self) -> None:
        ids = [message_id_of("p1", 7, at_ms) for at_ms in (0, 1, 2**48 - 1, 2**48)]
        assert [each[:14] for each in ids] == ["01" + "0" * 12, "01" + "0" * 11 + "1", "01" + "F" * 12, "01" + "0" * 12]
        assert {len(each) for each in ids} == {34}
        assert all(len(id_to_bytes(each)) == 17 for each in ids)


class TestASelection:
    def test_is_the_same_after_it_was_stored(self) -> None:
        meant = Selection(3, 10, 20, "TAGS = 'ü'", (1, 2), True), 99
        assert flow._from_text(flow._as_text(meant)) == meant
        assert flow._from_text(flow._as_text((Selection(), 0))) == (Selection(), 0)

    def test_narrows_nothing_unless_it_says_so(self) -> None:
        assert Selection() == Selection(None, None, None, "", (), False)
        assert LetterSelection(GROUP) == LetterSelection(GROUP, None, Selection())

    @pytest.mark.parametrize(
        "only",
        [
            Selection(),
            Selection(ids=tuple(range(1_000))),
            Selection(dead_from_ms=1),
            Selection(dead_until_ms=1),
            Selection(dead_from_ms=1, dead_until_ms=2),
            Selection(dead_from_ms=0, dead_until_ms=1),
            Selection(where="TAGS = 'a'"),
        ],
    )
    def test_may_be_any_that_can_match(self, only: Selection) -> None:
        flow._check(LetterSelection(GROUP, None, only))

    @pytest.mark.parametrize(
        ("only", "words"),
        [
            (Selection(ids=tuple(range(1_001))), "1000 ids, not 1001"),
            (Selection(dead_from_ms=2_000, dead_until_ms=2_000), "00:00:02.000.* is not after dead_from"),
            (Selection(dead_from_ms=2_001, dead_until_ms=2_000), r"1970-01-01 00:00:02\.001\+00:00"),
            (Selection(dead_from_ms=0, dead_until_ms=0), "is not after"),
        ],
    )
    def test_that_matches_nothing_is_refused(self, only: Selection, words: str) -> None:
        with pytest.raises(BadRequest, match=words):
            flow._check(LetterSelection(GROUP, None, only))

    @pytest.mark.parametrize(
        "of",
        [
            LetterSelection(Resource("", "")),
            LetterSelection(Resource("", "a b")),
            LetterSelection(GROUP, Resource("", "a b")),
            LetterSelection(GROUP, None, Selection(where="a >")),
        ],
    )
    def test_with_wrong_names_or_a_wrong_filter_is_refused(self, of: LetterSelection) -> None:
        with pytest.raises(PopError):
            flow._check(of)


@pytest.mark.parametrize(("limit", "default", "page"), [(0, 32, 32), (0, 7, 7), (1, 32, 1), (1_000, 32, 1_000)])
def test_a_page_has_a_default(limit: int, default: int, page: int) -> None:
    assert flow._page(limit, default) == page


@pytest.mark.parametrize("limit", [-1, 1_001])
def test_a_page_has_a_limit(limit: int) -> None:
    with pytest.raises(BadRequest, match=f"the limit is {limit}; allowed: 1 to 1000"):
        flow._page(limit, 32)


class TestOrders:
    def test_may_be_a_thousand(self) -> None:
        flow._check_orders([RedriveItem(each) for each in range(1_000)])

    @pytest.mark.parametrize(
        ("orders", "words"),
        [
            ([RedriveItem(each) for each in range(1_001)], "at most 1000 dead letters, not 1001"),
            ([RedriveItem(1), RedriveItem(2), RedriveItem(1)], "dead letter 1 is named twice"),
            ([RedriveItem(1), RedriveItem(2, "a\nb")], "control character"),
            ([RedriveItem(1), RedriveItem(2, repair=Repair(tag="a|b"))], "the repair of dead letter 2"),
        ],
    )
    def test_name_each_dead_letter_once_with_a_good_reason_and_repair(
        self, orders: list[RedriveItem], words: str
    ) -> None:
        with pytest.raises(PopError, match=words):
            flow._check_orders(orders)


def test_an_answer_and_a_call_have_a_limit() -> None:
    assert flow.PLANS_MAX == 1_000
    assert flow.STEPS_OF_A_CALL * flow.STEP_MAX == 100_000
