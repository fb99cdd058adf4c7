"""Bars that show counts to scale, in which a small count stays visible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from popconsole import words

WIDTH: Final = 1_000.0
LEAST: Final = 8.0  # of what is there at all


class Part(NamedTuple):
    """One state in a bar."""

    state: str
    colour: str
    shape: str
    text: str
    number: int
    x: float
    width: float


def parts_of(counts: Mapping[str, int]) -> list[Part]:
    """The states' parts of a bar, which is `WIDTH` wide; empty if all counts are 0, and then each width is 0."""
    widths = scaled(list(counts.values()))
    parts, x = [], 0.0
    for (name, count), width in zip(counts.items(), widths, strict=True):
        shown = words.state(name)
        parts.append(Part(name, shown.colour, shown.shape, shown.text, count, round(x, 1), round(width, 1)))
        x += width
    return parts


def scaled(counts: list[int]) -> list[float]:
    """Widths in proportion to the counts, but at least `LEAST` for what is not 0."""
    total = sum(counts)
    if not total:
        return [0.0] * len(counts)
    small = [0 < count * WIDTH / total < LEAST for count in counts]
    room = WIDTH - LEAST * sum(small)
    rest = sum(count for count, is_small in zip(counts, small, strict=True) if not is_small) or 1
    return [LEAST if is_small else count * room / rest for count, is_small in zip(counts, small, strict=True)]


def label_of(counts: Mapping[str, int]) -> str:
    """The bar in words, for who does not see it."""
    return ", ".join(f"{words.count(count)} {words.state(name).text}" for name, count in counts.items())
