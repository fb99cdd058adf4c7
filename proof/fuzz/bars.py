"""The bar of time for one input: in proportion to its size, and in time of the processor, not of the clock.

A busy machine makes an input take longer on the clock, and a little longer on the processor. So an input over its bar
is judged again several times, alone, and the shortest time counts.
"""

from __future__ import annotations

import gc
import time

from proof.fuzz.target import FuzzTarget, TooSlow

# Parsers and their judges take 0.2 µs for a byte, a server 1 ms for a request. What is quadratic takes the time of its
# bar at some thousand bytes: 4,096 times 4,096 steps of 50 ns are 0.8 s.
SECONDS_PER_BYTE = 1e-6
REPEATS = 5


def bar_of(target: FuzzTarget, data: bytes) -> float:
    """Seconds of the processor that judging the input may take."""
    return target.bar_s + SECONDS_PER_BYTE * len(data)


def judge_in_time(target: FuzzTarget, data: bytes) -> int:
    """`target.judge`. Raises `TooSlow` as well."""
    started = time.process_time()
    comparisons = target.judge(data)
    bar = bar_of(target, data)
    if time.process_time() - started > bar and (shortest := _shortest(target, data, bar)) > bar:
        raise TooSlow(
            f"{len(data)} bytes take {1_000 * shortest:.0f} ms of the processor, the shortest of {REPEATS} times;"
            f" they may take {1_000 * bar:.0f} ms"
        )
    return comparisons


def _shortest(target: FuzzTarget, data: bytes, bar: float) -> float:
    """The shortest time of several; as soon as one is below the bar, no more are needed."""
    gc.collect()
    shortest = float("inf")
    for _ in range(REPEATS):
        started = time.process_time()
        target.judge(data)
        shortest = min(shortest, time.process_time() - started)
        if shortest <= bar:
            break
    return shortest
