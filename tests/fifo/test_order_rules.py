"""Which messages of a run end, and which may be granted next: every run of up to four messages, by another way."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest

from popserver.fifo.order import Settled, advance, redeliverable
from popserver.model.states import ACKED, STORED, Event, State, sources


class Stored(NamedTuple):
    message_key: int
    state: str
    attempt: int = 1


def run_of(states: tuple[State, ...], attempt: int = 1) -> list[Stored]:
    return [Stored(key, state.value, attempt) for key, state in enumerate(states, start=10)]


RUNS = [run for length in range(4) for run in itertools.product(STORED, repeat=length)]


def test_the_first_acked_messages_end_and_the_next_ready_one_opens_the_group() -> None:
    for states in RUNS:
        run = run_of(states)
        for acked in ((), (10,), (11,), (10, 11), (10, 12), (99,)):
            ended = 0
            for each in run:
                if each.state not in ACKED and each.message_key not in acked:
                    break
                ended += 1
            is_open = ended == len(run) or run[ended].state == State.READY
            assert advance(run, acked) == Settled(ended, is_open), (states, acked)


@pytest.mark.parametrize(
    ("states", "acked", "settled"),
    [
        ((), (), Settled(0, True)),
        ((State.INFLIGHT,), (10,), Settled(1, True)),
        ((State.INFLIGHT, State.INFLIGHT), (10,), Settled(1, False)),
        ((State.INFLIGHT, State.INFLIGHT), (11,), Settled(0, False)),
        ((State.INFLIGHT, State.ACKED_PROVISIONALLY, State.READY), (10,), Settled(2, True)),
        ((State.WAITING_RETRY, State.READY), (), Settled(0, False)),
    ],
)
def test_an_ack_in_a_run(states: tuple[State, ...], acked: tuple[int, ...], settled: Settled) -> None:
    assert advance(run_of(states), acked) == settled
    if not acked:
        assert advance(run_of(states)) == settled


def test_what_is_held_or_waits_stops_the_rest() -> None:
    for states in RUNS:
        for attempt in (1, 2, 3):
            run = run_of(states, attempt)
            expected = []
            for each in run:
                if each.state not in sources(Event.RECEIVE):
                    break
                if each.state == State.READY or attempt < 2:
                    expected.append(each)
            assert redeliverable(run, 2) == expected, (states, attempt)


def test_an_acked_message_without_attempts_left_is_passed_over() -> None:
    run = [Stored(1, State.ACKED_PROVISIONALLY, 3), Stored(2, State.ACKED_PROVISIONALLY, 2), Stored(3, State.READY, 3)]
    assert [each.message_key for each in redeliverable(run, 3)] == [2, 3]
