"""Waiting for facts, not durations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

LOOK_AGAIN_S = 0.02


async def eventually(is_so: Callable[[], Awaitable[bool]], what: str, *, within_s: float) -> float:
    """Return once `is_so`, with the seconds it took; fails after `within_s`, naming what was waited for."""
    began = time.monotonic()
    while not await is_so():
        waited_s = time.monotonic() - began
        assert waited_s < within_s, f"{what} did not come true within {within_s} s"
        await asyncio.sleep(LOOK_AGAIN_S)
    return time.monotonic() - began


def soon(is_so: Callable[[], bool], *, within_s: float = 20.0) -> None:
    """Return once `is_so`; fails after `within_s`."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < within_s, f"it did not come true within {within_s} s"
        time.sleep(LOOK_AGAIN_S)
