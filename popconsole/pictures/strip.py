"""A calendar strip: how many messages are due in each of the next spans of time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from popconsole import words

COLUMNS: Final = 48
WIDTH: Final = 1_000.0
HEIGHT: Final = 90.0
# The span of a column; the first with which all fits is taken.
SPANS: Final = tuple(timedelta(seconds=each) for each in (10, 60, 300, 1_800, 3_600, 6 * 3_600, 86_400))


class Column(NamedTuple):
    """The messages that are due from `begin` on."""

    begin: datetime
    number: int
    x: float
    width: float
    height: float


class Strip(NamedTuple):
    """The columns. span: of one column, in words. later: messages due after the last column. labels: x and text."""

    columns: list[Column]
    span: str
    later: int
    labels: list[tuple[float, str]]


def strip_of(moments: Sequence[datetime], now: datetime) -> Strip | None:
    """None without a moment. What is overdue is in the first column."""
    if not moments:
        return None
    longest = max(moments) - now
    span = next((each for each in SPANS if longest <= each * COLUMNS), SPANS[-1])
    counts = [0] * COLUMNS
    later = 0
    for moment in moments:
        place = max(0, (moment - now) // span)
        if place < COLUMNS:
            counts[place] += 1
        else:
            later += 1
    most, width = max(counts) or 1, WIDTH / COLUMNS
    columns = [
        Column(now + index * span, count, round(index * width, 1), round(width - 2, 1), _height(count, most))
        for index, count in enumerate(counts)
    ]
    labels = [(round(index * width, 1), _label(index, span)) for index in range(0, COLUMNS, COLUMNS // 6)]
    return Strip(columns, words.duration(span), later, labels)


def _height(count: int, most: int) -> float:
    return round(max(3.0, HEIGHT * count / most), 1) if count else 0.0


def _label(index: int, span: timedelta) -> str:
    return "now" if not index else f"+{words.duration(index * span)}"
