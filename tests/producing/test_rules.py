"""Whom a check asks, and when; delivery times."""

from __future__ import annotations

import pytest

from popserver.model.errors import IllegalDeliveryTime, InvalidTransactionId
from popserver.producing.rules import (
    DAY_MS,
    DELAY_MS_MAX,
    CheckPolicy,
    check_delivery_time,
    check_transaction_id,
    first_check_at_ms,
    producers_to_ask,
)


def test_the_sender_first_then_the_others_in_turn() -> None:
    assert [producers_to_ask(["a", "b", "c"], "b", checks)[0] for checks in range(5)] == ["b", "c", "a", "b", "c"]
    assert producers_to_ask(["a", "b", "c"], "b", 1) == ["c", "a", "b"]


def test_without_the_sender_anybody() -> None:
    assert [producers_to_ask(["a", "b"], "gone", checks)[0] for checks in range(3)] == ["a", "b", "a"]
    assert producers_to_ask([], "gone", 0) == []


@pytest.mark.parametrize(("recovery_ms", "after_ms"), [(None, 6_000), (0, 6_000), (1, 1), (3_600_000, 3_600_000)])
def test_when_it_is_first_asked_about(recovery_ms: int | None, after_ms: int) -> None:
    assert first_check_at_ms(CheckPolicy(), recovery_ms, 1_000) == 1_000 + after_ms


@pytest.mark.parametrize("blank", ["", " ", "\t"])
def test_a_blank_transaction_id(blank: str) -> None:
    with pytest.raises(InvalidTransactionId, match="blank"):
        check_transaction_id(blank, "m1")


NOW = 1_735_689_600_000


@pytest.mark.parametrize("at_ms", [0, NOW - 1, NOW, NOW + 1, NOW + DELAY_MS_MAX])
def test_a_legal_delivery_time(at_ms: int) -> None:
    check_delivery_time(at_ms, NOW, DELAY_MS_MAX)


@pytest.mark.parametrize(
    ("at_ms", "says"),
    [
        (-1, "^delivery timestamp -1 ms is not between"),
        (253_402_300_800_000, "^delivery timestamp 253402300800000 ms is not between"),
        (NOW + DELAY_MS_MAX + 1, "^the message would be delivered in 40 days 1 ms; allowed: 40 days; start the server"),
        (NOW + DELAY_MS_MAX + DAY_MS, "^the message would be delivered in 41 days; allowed: 40 days; start the server"),
    ],
)
def test_an_illegal_delivery_time(at_ms: int, says: str) -> None:
    with pytest.raises(IllegalDeliveryTime, match=says):
        check_delivery_time(at_ms, NOW, DELAY_MS_MAX)


def test_no_limit_but_the_calendar() -> None:
    check_delivery_time(253_402_300_799_999, NOW, 0)
    with pytest.raises(IllegalDeliveryTime):
        check_delivery_time(253_402_300_800_000, NOW, 0)
