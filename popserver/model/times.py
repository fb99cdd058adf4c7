"""Durations and times as text for people, and the parser of durations."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from popserver.model.retry import HOUR_MS, MINUTE_MS, SECOND_MS

_UNITS = (("day", 24 * HOUR_MS), ("h", HOUR_MS), ("min", MINUTE_MS), ("s", SECOND_MS), ("ms", 1))


def span(ms: int) -> str:
    """Such as `41 days`, `1 h 30 min`, `250 ms`: the two largest units that are not zero, rounded. `ms` ≥ 0."""
    counted = _counted(ms)
    if len(counted) > 2:
        size = dict(_UNITS)[counted[1][0]]
        counted = _counted((ms + size // 2) // size * size)
    return " ".join(f"{count} {unit}{'s' * (unit == 'day' and count > 1)}" for unit, count in counted) or "0 ms"


def apart(at_ms: int, now_ms: int) -> str:
    """Such as `in 10 s` or `2 days ago`; with milliseconds only below 2 s."""
    distance_ms = abs(at_ms - now_ms)
    text = span(distance_ms if distance_ms < 2 * SECOND_MS else distance_ms - distance_ms % SECOND_MS)
    return f"in {text}" if at_ms > now_ms else f"{text} ago"


def _counted(ms: int) -> list[tuple[str, int]]:
    """The count of each unit, without zero counts."""
    counts = []
    for unit, size in _UNITS:
        count, ms = divmod(ms, size)
        counts.append((unit, count))
    return [(unit, count) for unit, count in counts if count]


def moment(at_ms: int, now_ms: int) -> str:
    """`2026-11-20 14:02:11.250+00:00 (in 10 s)`"""
    return f"{utc(at_ms)} ({apart(at_ms, now_ms)})"


def utc(at_ms: int) -> str:
    """`2026-11-20 14:02:11.250+00:00`"""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(sep=" ", timespec="milliseconds")


# The last millisecond of the year 9999, the limit of a timestamp on the wire.
TIME_MS_MAX = 253_402_300_799_999


_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms_of(given: object) -> int:
    """Milliseconds of a text such as `10s`, a timedelta, or a whole number of milliseconds. Raises `ValueError`."""
    if isinstance(given, str):
        return parse_duration_ms(given)
    if isinstance(given, timedelta):
        return round(given / timedelta(milliseconds=1))
    if isinstance(given, int | float) and not isinstance(given, bool) and given == given // 1:
        return int(given)
    raise ValueError(
        f"{given!r} is not a duration; write '500ms', '10s' or '2h', or give a timedelta; a number is whole"
        " milliseconds"
    )


def parse_duration_ms(written: str) -> int:
    """Parse `500ms`, `10s`, `1.5m`, `2h`, `3d`, or several in a row (`1h30m`), to milliseconds. Raises `ValueError`.

    Rounds to whole milliseconds. The client has the same rules, and the same tests check both.
    """
    given = written.strip()
    parts = list(_PART.finditer(given))
    if not parts or "".join(part[0] for part in parts) != given:
        raise ValueError(f"'{written}' is not a duration; write 500ms, 10s, 5m, 2h or 1h30m")
    duration_ms = sum(float(part[1]) * _UNIT_MS[part[2]] for part in parts)
    if duration_ms >= 2**63:
        raise ValueError(f"'{written}' is too long for a duration")
    return round(duration_ms)
