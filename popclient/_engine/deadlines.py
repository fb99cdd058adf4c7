"""Until when something must have become of a message. All have the same time: the first to come is the first late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from popclient._engine.backlog import Held


class Deadlines:
    """Watches messages; `late` is told of each that has not been forgotten `timeout` seconds after `watch`."""

    def __init__(self, timeout: float, late: Callable[[Held], None]) -> None:
        self._timeout = timeout
        self._late = late
        self._at: dict[Held, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, held: Held) -> None:
        """From now on, unless it is watched already."""
        at = asyncio.get_running_loop().time() + self._timeout
        self._at.setdefault(held, at)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(at, self._look)

    @property
    def longest(self) -> float:
        """Seconds for which the oldest has been watched; 0 without any."""
        for at in self._at.values():
            return asyncio.get_running_loop().time() - at + self._timeout
        return 0.0

    def forget(self, held: Held) -> None:
        self._at.pop(held, None)

    def stop(self) -> None:
        self._at.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._at:
            held, at = next(iter(self._at.items()))
            if at > loop.time():
                self._timer = loop.call_at(at, self._look)
                return
            del self._at[held]
            self._late(held)
