"""Admission order of new connections: addresses take turns, at a limited rate.

Admitting a connection costs the server about a millisecond. A flood of connections must not delay the calls of other
clients, nor a new connection from another address.
"""

from __future__ import annotations

import asyncio
from collections import deque

PER_S = 400
AT_ONCE = 40
TURN_S = 0.01


class Turns:
    """Lets connections join: at once if there are few, otherwise one address after the other."""

    def __init__(self) -> None:
        self._rate = Rate(PER_S, AT_ONCE)
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by address; the next one first
        self._alarm: asyncio.TimerHandle | None = None

    async def wait(self, host: str) -> None:
        """Return when a connection from `host` may join."""
        loop = asyncio.get_running_loop()
        if not self._waiting and self._rate.take(loop.time()):
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(host, deque()).append(turn)
        if self._alarm is None:
            self._alarm = loop.call_later(TURN_S, self._go_on, loop)
        await turn

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting and self._rate.take(loop.time()):
            host, turns = next(iter(self._waiting.items()))
            del self._waiting[host]
            turn = turns.popleft()
            while turn.done() and turns:  # its client has disconnected
                turn = turns.popleft()
            if turns:
                self._waiting[host] = turns
            if not turn.done():
                turn.set_result(None)
        self._alarm = loop.call_later(TURN_S, self._go_on, loop) if self._waiting else None


class Rate:
    """A token bucket with `per_s` tokens per second, and at most `at_once` tokens. It is full at first."""

    def __init__(self, per_s: float, at_once: int) -> None:
        self._per_s = per_s
        self._at_once = at_once
        self._balance = float(at_once)
        self._as_of_s = 0.0

    def take(self, now_s: float, wanted: int = 1) -> int:
        """Take up to `wanted` tokens; returns how many there were."""
        self._balance = min(self._at_once, self._balance + (now_s - self._as_of_s) * self._per_s)
        self._as_of_s = now_s
        taken = min(wanted, int(self._balance))
        self._balance -= taken
        return taken
