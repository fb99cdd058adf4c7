"""The type of a case, and helpers that all cases share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks.bench import Bench

CALLERS = 64
CONSUMERS = 64
STOCK_TOPIC = "bench-stock"

Figures = dict[str, Any]
# Per variant, the figures of every round.
Rounds = dict[str, list[Figures]]


class Case(NamedTuple):
    """`unit` is what `key` counts."""

    title: str
    measure: Callable[[Bench], Rounds]
    key: str = "rate"
    unit: str = "msg/s"


def in_turns(bench: Bench, names: Sequence[str], measure: Callable[[str, int], Figures]) -> Rounds:
    """Measure these variants in turn, once in each round: A B C A B C."""
    found: Rounds = {name: [] for name in names}
    for number in range(bench.plan.rounds):
        for name, figures in found.items():
            bench.say(f"round {number + 1} of {bench.plan.rounds}: {name}")
            figures.append(measure(name, number))
    return found


def window(bench: Bench, *, body: bool = False) -> dict[str, Any]:
    """The durations of a rate's load; with `body` also the size of its messages."""
    options: dict[str, Any] = {"warm_up": bench.plan.warm_up, "seconds": bench.plan.seconds}
    return options | {"body_bytes": bench.plan.body_bytes} if body else options
