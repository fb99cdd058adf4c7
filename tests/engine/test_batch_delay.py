"""When a group commit leaves."""

from __future__ import annotations

import pytest

from popserver.engine.batch import BatchDelay


def test_the_first_request_leaves_at_once() -> None:
    assert BatchDelay().wait_s(1, now_s=100.0) == 0


def test_a_caller_who_is_alone_never_waits() -> None:
    pace = BatchDelay()
    for moment in range(10):
        pace.started(1, now_s=float(moment))
        assert pace.wait_s(1, now_s=float(moment)) == 0


@pytest.mark.parametrize(
    ("count", "delay_s"), [(2, 0.000_4), (8, 0.001_6), (19, 0.003_8), (20, 0.004), (21, 0.004), (500, 0.004)]
)
def test_after_company_a_batch_waits_for_as_much_again(count: int, delay_s: float) -> None:
    pace = BatchDelay()
    pace.started(count, now_s=10.0)
    assert pace.wait_s(1, now_s=10.0) == pytest.approx(delay_s)
    assert pace.wait_s(1, now_s=10.0 + delay_s / 2) == pytest.approx(delay_s / 2)
    assert pace.wait_s(1, now_s=10.0 + 2 * delay_s) == 0


def test_streamed_answers_count_as_calls() -> None:
    pace = BatchDelay()
    pace.started(2, now_s=10.0, frames=32)
    assert pace.wait_s(1, now_s=10.0) == pytest.approx((2 + 4) * 0.000_2)


def test_a_consumer_who_is_alone_never_waits() -> None:
    pace = BatchDelay()
    pace.started(1, now_s=10.0, frames=32)
    assert pace.wait_s(1, now_s=10.0) == 0


def test_a_full_batch_leaves_at_once() -> None:
    pace = BatchDelay()
    pace.started(500, now_s=10.0)
    assert pace.wait_s(47, now_s=10.0) > 0
    assert pace.wait_s(48, now_s=10.0) == 0


def test_a_lull_is_forgotten_after_one_batch() -> None:
    pace = BatchDelay()
    pace.started(500, now_s=10.0)
    pace.started(1, now_s=10.005)
    assert pace.wait_s(1, now_s=10.005) == 0
