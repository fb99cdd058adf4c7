"""The law in full: names that databases store, times that clients count on, and what a member's failure leads to."""

from __future__ import annotations

from enum import StrEnum

import pytest

from popserver.model import retry, states
from popserver.model.errors import BadRequest
from popserver.model.retry import Exponential, RetryPolicy, check_delay_level, handed_back_interval_ms
from popserver.model.states import (
    ACKED,
    SHOWN,
    SHOWN_AS,
    STORED,
    TIMED,
    TRANSITIONS,
    Event,
    State,
    mermaid,
    shown_as,
)

S, M, H = 1_000, 60_000, 3_600_000
ENUMS: set[type[StrEnum]] = {
    each
    for module in (states, retry)
    for each in vars(module).values()
    if isinstance(each, type) and issubclass(each, StrEnum) and each is not StrEnum
}


@pytest.mark.parametrize("kind", sorted(ENUMS, key=str))
def test_a_stored_name_is_the_members_name(kind: type[StrEnum]) -> None:
    """Databases and clients have these names, so none may ever change."""
    assert {each.name: each.value for each in kind} == {name: name for name in kind.__members__}


def test_every_transition() -> None:
    table = {
        State.READY: {Event.RECEIVE: State.INFLIGHT, Event.SKIP: State.COMMIT},
        State.INFLIGHT: {
            Event.ACK: State.COMMIT,
            Event.ACK_IN_TRANSACTION: State.ACKED_IN_TRANSACTION,
            Event.PROVISIONAL_ACK: State.ACKED_PROVISIONALLY,
            Event.CHANGE_INVISIBLE: State.INFLIGHT,
            Event.RELEASE: State.READY,
            Event.GIVE_BACK: State.READY,
            Event.RETRY: State.WAITING_RETRY,
            Event.EXHAUST: State.DLQ,
            Event.FORWARD_TO_DLQ: State.DLQ,
            Event.RESET: State.READY,
        },
        State.ACKED_PROVISIONALLY: {
            Event.RECEIVE: State.INFLIGHT,
            Event.SETTLE: State.COMMIT,
            Event.RESET: State.READY,
            Event.SKIP: State.COMMIT,
        },
        State.ACKED_IN_TRANSACTION: {
            Event.ACK: State.COMMIT,
            Event.PROVISIONAL_ACK: State.ACKED_PROVISIONALLY,
            Event.RESET: State.READY,
        },
        State.WAITING_RETRY: {
            Event.BACKOFF_ELAPSED: State.READY,
            Event.RESET: State.READY,
            Event.SKIP: State.COMMIT,
        },
        State.COMMIT: {Event.RESET: State.READY},
        State.DLQ: {Event.REDRIVE: State.READY, Event.RESET: State.READY},
    }
    assert {(source, event): end for source, ends in table.items() for event, end in ends.items()} == TRANSITIONS


def test_kinds_of_states() -> None:
    seen = {State.READY, State.INFLIGHT, State.WAITING_RETRY, State.COMMIT, State.DLQ}
    hidden = {State.ACKED_PROVISIONALLY: State.READY, State.ACKED_IN_TRANSACTION: State.INFLIGHT}
    assert set(SHOWN) == seen
    assert hidden == SHOWN_AS
    assert hidden.keys() == ACKED
    assert set(STORED) == {State.READY, State.INFLIGHT, State.WAITING_RETRY, *hidden}
    assert {State.INFLIGHT, State.WAITING_RETRY, State.ACKED_IN_TRANSACTION} == TIMED
    for state in State:
        assert state.shown is hidden.get(state, state)
        assert shown_as(state) == {each for each in State if hidden.get(each, each) is state}


def test_the_diagram_is_lines() -> None:
    assert mermaid().startswith("stateDiagram-v2\n    [*] --> READY\n    READY --> INFLIGHT: RECEIVE\n")
    assert mermaid().endswith("    DLQ --> READY: RESET\n")


def test_times_that_clients_count_on() -> None:
    assert retry.FIFO_INTERVAL_MS == RetryPolicy().fifo_interval_ms == 3 * S
    assert retry.ORPHAN_DELAY_MS == 1 * S
    assert retry.PUSH_HOLD_MS_MAX == 3 * H
    assert retry.CLIENT_LAPSE_MS == 35 * S
    assert retry.MEMBER_LAPSE_MS == 120 * S
    levels = (1 * S, 5 * S, 10 * S, 30 * S, *(n * M for n in range(1, 11)), 20 * M, 30 * M, 1 * H, 2 * H)
    assert levels == retry.DELAY_LEVELS_MS


def test_a_message_group_waits_its_own_interval() -> None:
    policy = RetryPolicy(fifo_interval_ms=9)
    assert retry.interval_ms(policy, 1) == 10 * S
    assert [retry.interval_ms(policy, attempt, in_order=True) for attempt in (1, 17)] == [9, 9]


@pytest.mark.parametrize(
    ("intervals", "attempt", "waits_ms"),
    [
        (Exponential(10, 1_000, 1.0), 1, 10),
        (Exponential(10, 1_000, 1.0), 500, 10),
        (Exponential(10, 10, 2.0), 1, 10),
        (Exponential(10, 15, 2.0), 2, 15),
        (Exponential(10, 40, 2.0), 3, 40),
        (Exponential(10, 41, 2.0), 3, 40),
        (Exponential(7, 1_000, 1.5), 2, 10),
        (Exponential(7, 1_000, 1.5), 3, 16),
        (Exponential(10, 12 * H, 100.0), 1_000_000, 12 * H),
    ],
)
def test_exponential_intervals_at_their_edges(intervals: Exponential, attempt: int, waits_ms: int) -> None:
    assert retry.interval_ms(RetryPolicy(intervals_ms=intervals), attempt) == waits_ms


def test_the_highest_delay_level() -> None:
    for level in (-1, 0, 1, 18):
        check_delay_level(level)
    with pytest.raises(BadRequest, match="delay level 19 is above the highest, 18"):
        check_delay_level(19)


@pytest.mark.parametrize(
    ("failures", "delay_level", "failures_max", "event"),
    [
        (0, 0, None, Event.RETRY),
        (1, 0, None, Event.RETRY),
        (2, 0, None, Event.EXHAUST),
        (3, 0, None, Event.EXHAUST),
        (1, 0, -1, Event.RETRY),
        (2, 0, -1, Event.EXHAUST),
        (0, 0, 0, Event.EXHAUST),
        (0, 0, 1, Event.RETRY),
        (1, 0, 1, Event.EXHAUST),
        (5, 0, 6, Event.RETRY),
        (0, 1, None, Event.RETRY),
        (2, 1, None, Event.EXHAUST),
        (0, -1, None, Event.FORWARD_TO_DLQ),
        (9, -2, 0, Event.FORWARD_TO_DLQ),
    ],
)
def test_what_a_member_sends_back(failures: int, delay_level: int, failures_max: int | None, event: Event) -> None:
    assert retry.when_handed_back(failures, delay_level, RetryPolicy(max_attempts=3), failures_max) is event


@pytest.mark.parametrize(
    ("failures", "delay_level", "waits_ms"),
    [(0, 0, 10 * S), (1, 0, 30 * S), (0, 1, 1 * S), (5, 1, 1 * S), (0, 2, 5 * S), (0, 18, 2 * H)],
)
def test_how_long_a_message_waits_that_was_sent_back(failures: int, delay_level: int, waits_ms: int) -> None:
    assert handed_back_interval_ms(failures, delay_level, RetryPolicy()) == waits_ms
