"""Durations as people write them."""

from __future__ import annotations

import re

_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration_ms(written: str) -> int:
    """Milliseconds of `500ms`, `10s`, `1.5m`, `2h`, `3d`, or several in a row (`1h30m`); raises `ValueError`.

    Rounds to whole milliseconds. The client reads durations by the same rules, and the same tests hold for both.
    """
    given = written.strip()
    parts = list(_PART.finditer(given))
    if not parts or "".join(part[0] for part in parts) != given:
        raise ValueError(f"'{written}' is no duration; write 500ms, 10s, 5m, 2h or 1h30m")
    duration_ms = sum(float(part[1]) * _UNIT_MS[part[2]] for part in parts)
    if duration_ms >= 2**63:
        raise ValueError(f"'{written}' is too long for a duration")
    return round(duration_ms)
