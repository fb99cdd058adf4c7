"""Durations as people say them."""

from __future__ import annotations

from popserver.domain.retry import HOUR_MS, MINUTE_MS, SECOND_MS

_UNITS = (("day", 24 * HOUR_MS), ("h", HOUR_MS), ("min", MINUTE_MS), ("s", SECOND_MS), ("ms", 1))


def span(ms: int) -> str:
    """`41 days`, `1 h 30 min`, `250 ms`: the two largest units that are not zero, rounded. `ms` is 0 or more."""
    counted = _counted(ms)
    if len(counted) > 2:
        size = dict(_UNITS)[counted[1][0]]
        counted = _counted((ms + size // 2) // size * size)
    return " ".join(f"{count} {unit}{'s' * (unit == 'day' and count > 1)}" for unit, count in counted) or "0 ms"


def apart(at_ms: int, now_ms: int) -> str:
    """`in 10 s`, `2 days ago`; milliseconds only of what is near."""
    distance_ms = abs(at_ms - now_ms)
    said = span(distance_ms if distance_ms < 2 * SECOND_MS else distance_ms - distance_ms % SECOND_MS)
    return f"in {said}" if at_ms > now_ms else f"{said} ago"


def _counted(ms: int) -> list[tuple[str, int]]:
    """How many of each unit, those left out of which there is none."""
    counts = []
    for unit, size in _UNITS:
        count, ms = divmod(ms, size)
        counts.append((unit, count))
    return [(unit, count) for unit, count in counts if count]
