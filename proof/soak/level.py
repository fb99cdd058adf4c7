"""Judges whether a measure stays level while a server works. Pure.

What comes before the warm-up ends is not judged: caches fill, and nothing is old enough to be removed. The rest is cut
into three parts, and a part is worth its median, so a single value counts for nothing and a sawtooth with several teeth
in a part counts as its middle. A measure grows if the last part is above the first one by more than the bar, and still
rose in the last part: what took a step up early and stayed there is level.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

WARM_SHARE = 0.35  # of all samples
# Of the bar: what the last part must be above the middle one, else the growth is over. A steady growth has a half.
STILL_RISES = 0.25
SAMPLES_MIN = 20


class Bar(NamedTuple):
    """How much a measure may grow: by this share of its level, and always by `least`, in its unit."""

    share: float
    least: float

    def of(self, level: float) -> float:
        return max(self.share * level, self.least)


class Growth(NamedTuple):
    """A measure of a run: its level after the warm-up and at the end, and what it may grow by, all in its unit."""

    measure: str
    early: float
    late: float
    bar: float
    grows: bool

    def __str__(self) -> str:
        growth = self.late - self.early
        verdict = "GROWS" if self.grows else "level"
        return f"{self.measure:34}{self.early:12,.1f}{self.late:12,.1f}{growth:+12,.1f}{self.bar:12,.1f}  {verdict}"


HEADING = f"{'measure':34}{'warm':>12}{'at the end':>12}{'growth':>12}{'bar':>12}"


def judge(measure: str, values: Sequence[float], bar: Bar) -> Growth:
    """Judge the values of a measure, which were taken at equal intervals. Raises ValueError for too few of them."""
    if len(values) < SAMPLES_MIN:
        raise ValueError(f"{len(values)} samples of {measure}; {SAMPLES_MIN} are the least that can be judged")
    early, middle, late = (median(part) for part in thirds(values[int(len(values) * WARM_SHARE) :]))
    allowed = bar.of(early)
    return Growth(measure, early, late, allowed, late - early > allowed and late - middle > STILL_RISES * allowed)


def thirds(values: Sequence[float]) -> list[Sequence[float]]:
    """The values in three parts of about one length, in their order."""
    ends = [round(len(values) * part / 3) for part in range(4)]
    return [values[begin:end] for begin, end in itertools.pairwise(ends)]
