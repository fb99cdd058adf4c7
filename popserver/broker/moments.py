"""Moments as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

from popserver.domain.spans import apart


def moment(at_ms: int, now_ms: int) -> str:
    """`2026-11-20 14:02:11.250+00:00 (in 10 s)`"""
    return f"{utc(at_ms)} ({apart(at_ms, now_ms)})"


def utc(at_ms: int) -> str:
    """`2026-11-20 14:02:11.250+00:00`"""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(sep=" ", timespec="milliseconds")
