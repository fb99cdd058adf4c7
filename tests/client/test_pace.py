"""How fast dead letters go back, on a clock that only waiting moves."""

from __future__ import annotations

import pytest

from popclient.admin.pace import Pace


class Waiting:
    """A clock that stands still but for `wait`, and whoever takes time."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.waits: list[float] = []

    def now(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now_s += seconds


def sent_in(rate: float, seconds: float, each_takes: float = 0.0) -> int:
    """How many messages went in that time."""
    clock, sent = Waiting(), 0
    pace = Pace(rate, now=clock.now, wait=clock.wait)
    while True:
        pace.await_turn()
        if clock.now_s >= 100.0 + seconds:
            return sent
        clock.now_s += each_takes
        pace.spent(pace.step)
        sent += pace.step


def test_without_a_rate_nobody_waits() -> None:
    clock = Waiting()
    pace = Pace(now=clock.now, wait=clock.wait)
    for _ in range(3):
        pace.await_turn()
        pace.spent(pace.step)
    assert (pace.step, clock.waits) == (1_000, [])


@pytest.mark.parametrize("rate", [1 / 60, 0.5, 1, 3, 100, 4_999, 20_000])
def test_a_rate_is_kept(rate: float) -> None:
    seconds = max(10.0, 10 / rate)
    assert sent_in(rate, seconds) == pytest.approx(rate * seconds, rel=0.01, abs=Pace(rate).step)


def test_the_time_that_steps_take_is_not_added() -> None:
    assert sent_in(100, 10, each_takes=0.15) == 1_000


def test_what_a_slow_server_leaves_unused_is_not_made_up_for() -> None:
    clock = Waiting()
    pace = Pace(10, now=clock.now, wait=clock.wait)
    pace.await_turn()
    clock.now_s += 60
    pace.spent(2)
    began = clock.now_s
    for _ in range(6):
        pace.await_turn()
        pace.spent(2)
    assert clock.now_s - began == pytest.approx(1.0)


def test_what_was_skipped_costs_no_time() -> None:
    clock = Waiting()
    pace = Pace(10, now=clock.now, wait=clock.wait)
    for _ in range(5):
        pace.await_turn()
        pace.spent(0)
    assert clock.waits == []


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_a_rate_that_is_none(rate: float) -> None:
    with pytest.raises(ValueError, match=r"rate is .* messages a second; it must be more than 0"):
        Pace(rate)
