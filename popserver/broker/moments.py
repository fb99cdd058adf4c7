"""Moments as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(at_ms: int, now_ms: int) -> str:
    """`2026-11-20 14:02:11.250+00:00 (in 10 s)`"""
    text = datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(sep=" ", timespec="milliseconds")
    distance_ms = at_ms - now_ms
    return f"{text} (in {_span(distance_ms)})" if distance_ms >= 0 else f"{text} ({_span(-distance_ms)} ago)"


def _span(ms: int) -> str:
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= 2 * size:
            return f"{ms // size} {unit}"
    return f"{ms} ms"
