"""What the end of a hold means, and how long a failed message waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popserver.model.errors import BadRequest
from popserver.model.group import check_intervals, check_max_attempts
from popserver.model.retry import (
    RETRY_LADDER_MS,
    SUSPENDED,
    Exponential,
    Holder,
    RetryPolicy,
    interval_ms,
    when_hold_ends,
    when_visibility_changes,
)
from popserver.model.states import Event
from popserver.model.topic import check_queue_count, message_key, offset_of, queue_of

S, M, H = 1_000, 60_000, 3_600_000


@pytest.mark.row("L5")
@pytest.mark.parametrize(
    ("attempt", "waits_ms"),
    list(
        enumerate(
            [10 * S, 30 * S, *(n * M for n in range(1, 11)), 20 * M, 30 * M, 1 * H, 2 * H, 2 * H, 2 * H],
            start=1,
        )
    ),
)
def test_the_ladder(attempt: int, waits_ms: int) -> None:
    assert interval_ms(RetryPolicy(), attempt) == waits_ms


@pytest.mark.row("L5")
def test_the_ladder_is_the_old_table_of_delays_from_its_third_on() -> None:
    delays = [1 * S, 5 * S, 10 * S, 30 * S, *(n * M for n in range(1, 11)), 20 * M, 30 * M, 1 * H, 2 * H]
    assert tuple(delays[2:]) == RETRY_LADDER_MS


def test_the_ladder_has_a_rung_for_each_of_16_retries() -> None:
    assert len(RETRY_LADDER_MS) == 16
    assert RetryPolicy().max_attempts == 17


@pytest.mark.row("L17")
def test_a_ladder_of_ones_own() -> None:
    policy = RetryPolicy(10, (5, 7))
    assert [interval_ms(policy, attempt) for attempt in (1, 2, 3, 9)] == [5, 7, 7, 7]


@pytest.mark.row("L7")
def test_exponential_intervals() -> None:
    policy = RetryPolicy(intervals_ms=Exponential())
    waits = [interval_ms(policy, attempt) for attempt in range(1, 17)]
    assert waits[:4] == [5 * S, 10 * S, 20 * S, 40 * S]
    assert waits[9:] == [2_560 * S, 5_120 * S, 2 * H, 2 * H, 2 * H, 2 * H, 2 * H]
    assert interval_ms(policy, 3, in_order=True) == policy.fifo_interval_ms, "a message group waits the same each time"


@pytest.mark.row("L7")
@given(
    st.integers(1, 12 * H),
    st.integers(1, 12 * H),
    st.floats(1, 100),
    st.integers(1, 1_000),
)
def test_exponential_intervals_grow_by_their_factor_up_to_the_longest(
    one_ms: int, other_ms: int, multiplier: float, attempt: int
) -> None:
    initial_ms, longest_ms = sorted((one_ms, other_ms))
    policy = RetryPolicy(1_000, Exponential(initial_ms, longest_ms, multiplier))
    check_intervals(policy.intervals_ms)
    now_ms, next_ms = interval_ms(policy, attempt), interval_ms(policy, attempt + 1)
    assert interval_ms(policy, 1) == initial_ms
    assert initial_ms <= now_ms <= next_ms <= longest_ms
    if next_ms < longest_ms:
        assert abs(next_ms - now_ms * multiplier) <= 1 + multiplier, "each is rounded to a millisecond"


@pytest.mark.parametrize(
    ("intervals", "says"),
    [
        (Exponential(initial_ms=0), "not from 0 ms to"),
        (Exponential(10, 9), "not from 10 ms to 9 ms"),
        (Exponential(longest_ms=12 * H + 1), "at most 12 h"),
        (Exponential(multiplier=0.5), "1 to 100, not 0.5"),
        (Exponential(multiplier=101), "1 to 100, not 101"),
        (Exponential(multiplier=float("nan")), "1 to 100, not nan"),
    ],
)
def test_exponential_intervals_that_are_refused(intervals: Exponential, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        check_intervals(intervals)


@pytest.mark.parametrize(
    ("holder", "attempt", "event"),
    [
        (Holder.PUSH, 1, Event.RETRY),
        (Holder.PUSH, 2, Event.RETRY),
        (Holder.PUSH, 3, Event.EXHAUST),
        (Holder.PUSH, 4, Event.EXHAUST),
        (Holder.SIMPLE, 1, Event.RELEASE),
        (Holder.SIMPLE, 2, Event.RELEASE),
        (Holder.SIMPLE, 3, Event.EXHAUST),
        (Holder.ORPHAN, 2, Event.RELEASE),
        (Holder.ORPHAN, 3, Event.EXHAUST),
    ],
)
def test_when_nobody_answers_in_time(holder: Holder, attempt: int, event: Event) -> None:
    assert when_hold_ends(holder, attempt, RetryPolicy(max_attempts=3)) is event


@pytest.mark.row("L14")
@pytest.mark.parametrize(
    ("holder", "attempt", "event"),
    [
        (Holder.PUSH, 1, Event.RETRY),
        (Holder.PUSH, 2, Event.RETRY),
        (Holder.PUSH, 3, Event.EXHAUST),
        (Holder.SIMPLE, 1, Event.CHANGE_INVISIBLE),
        (Holder.SIMPLE, 3, Event.CHANGE_INVISIBLE),
        (Holder.ORPHAN, 1, Event.RETRY),
        (Holder.ORPHAN, 3, Event.EXHAUST),
    ],
)
def test_when_the_visibility_changes(holder: Holder, attempt: int, event: Event) -> None:
    assert when_visibility_changes(holder, attempt, RetryPolicy(max_attempts=3)) is event


def test_a_suspended_message_has_a_reason_unlike_a_failed_one() -> None:
    """A failure may have no reason, and a consumer may give any: only this text says that nothing failed."""
    assert SUSPENDED == "its consumer suspended the lite topic"


def test_limits_of_a_policy() -> None:
    check_max_attempts(1)
    check_max_attempts(1_000)
    check_intervals((0,))
    check_intervals((12 * H,) * 64)
    for attempts in (0, -1, 1_001):
        with pytest.raises(BadRequest, match=f"1 to 1000 deliveries, not {attempts}"):
            check_max_attempts(attempts)
    for intervals, says in (
        ((), "not 0"),
        ((1,) * 65, "not 65"),
        ((-1,), "not -1 ms"),
        ((12 * H + 1,), "not 12 h 1 ms"),
    ):
        with pytest.raises(BadRequest, match=says):
            check_intervals(intervals)


def test_limits_of_a_topic() -> None:
    check_queue_count(1)
    check_queue_count(1_024)
    for count in (0, -1, 1_025):
        with pytest.raises(BadRequest, match=f"1 to 1024 message queues, not {count}"):
            check_queue_count(count)


@pytest.mark.parametrize(("queue_id", "offset"), [(1, 0), (1, 2**40 - 1), (2**22, 5)])
def test_a_message_key_is_its_place(queue_id: int, offset: int) -> None:
    key = message_key(queue_id, offset)
    assert (queue_of(key), offset_of(key)) == (queue_id, offset)
    assert message_key(queue_id, 2**40 - 1) < message_key(queue_id + 1, 0) < 2**63
