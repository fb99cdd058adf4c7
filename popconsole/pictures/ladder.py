"""A group's retry intervals as stairs: a step for each pause, the longer the higher; the dead letter is at the end."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Final, NamedTuple

from popclient.admin import Group
from popconsole import words

SHOWN_MAX: Final = 16
WIDTH: Final = 960.0
LOW: Final = 26.0
HIGH: Final = 92.0


class Step(NamedTuple):
    """The pause after a failed attempt. pause: in words; empty for a gap, where steps are left out."""

    attempt: int
    pause: str
    x: float
    width: float
    height: float


class Ladder(NamedTuple):
    """The stairs. together: how long a message that always fails is tried, in words. left_out: steps not drawn."""

    steps: list[Step]
    end_x: float
    together: str
    left_out: int
    attempts: int


def ladder_of(group: Group) -> Ladder:
    """Each pause of the group, the first ones and the last one if there are many."""
    pauses = [pause_after(group, attempt) for attempt in range(1, group.max_attempts)]
    shown = list(enumerate(pauses, 1))
    left_out = max(0, len(shown) - SHOWN_MAX)
    if left_out:
        shown = [*shown[: SHOWN_MAX - 1], shown[-1]]
    width = min(120.0, (WIDTH - 60) / max(1, len(shown)))
    longest = max((pause.total_seconds() for pause in pauses), default=0.0)
    steps = [
        Step(attempt, words.duration(pause), round(index * width, 1), round(width, 1), _height(pause, longest))
        for index, (attempt, pause) in enumerate(shown)
    ]
    together = words.duration(sum(pauses, timedelta()))
    return Ladder(steps, round(len(steps) * width, 1), together, left_out, group.max_attempts)


def pause_after(group: Group, attempt: int) -> timedelta:
    """The pause after this attempt has failed; the last interval of a ladder repeats."""
    if (backoff := group.retry_backoff) is not None:
        steps = min(attempt - 1, 10_000)
        try:
            seconds = backoff.initial.total_seconds() * backoff.multiplier**steps
        except OverflowError:
            return backoff.longest
        return backoff.longest if seconds >= backoff.longest.total_seconds() else timedelta(seconds=seconds)
    if not group.retry_intervals:
        return timedelta()
    return group.retry_intervals[min(attempt, len(group.retry_intervals)) - 1]


def _height(pause: timedelta, longest: float) -> float:
    if not longest:
        return LOW
    share = math.log1p(pause.total_seconds()) / math.log1p(longest)
    return round(LOW + share * (HIGH - LOW), 1)
