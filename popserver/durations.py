"""Durations as people write them."""

from __future__ import annotations

import re

_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration_ms(written: str) -> int:
    """Milliseconds of `500ms`, `10s`, `1.5m`, `2h`, `3d` or several in a row (`1h30m`); raises `ValueError`."""
    parts = _WRITTEN.findall(written)
    if not parts or "".join(number + unit for number, unit in parts) != written.strip():
        raise ValueError(f"'{written}' is no duration; write 500ms, 10s, 5m, 2h or 1h30m")
    return round(sum(float(number) * _UNIT_MS[unit] for number, unit in parts))
