"""Whose connection is joined to the server next: each address in its turn, and no more of them than the server takes.

Joining a connection costs the server about a millisecond. A flood of connections must neither hold up the calls of
others nor the newcomer from another address.
"""

from __future__ import annotations

import asyncio
from collections import deque

PER_S = 400
AT_ONCE = 40
TURN_S = 0.01


class Turns:
    """Lets connections join: at once while there are few, then by address in turn."""

    def __init__(self) -> None:
        self._rate = Rate(PER_S, AT_ONCE)
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by address; whose turn it is stands first
        self._alarm: asyncio.TimerHandle | None = None

    async def wait(self, host: str) -> None:
        """Return when it is the turn of one more connection from there."""
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
            while turn.done() and turns:  # its client is gone
                turn = turns.popleft()
            if turns:
                self._waiting[host] = turns
            if not turn.done():
                turn.set_result(None)
        self._alarm = loop.call_later(TURN_S, self._go_on, loop) if self._waiting else None


# So many a second, and so many at once.


class Rate:
    """A token bucket; it is full at first."""

    def __init__(self, per_s: float, at_once: int) -> None:
        self._per_s = per_s
        self._at_once = at_once
        self._balance = float(at_once)
        self._as_of_s = 0.0

    def take(self, now_s: float, wanted: int = 1) -> int:
        """How many of the wanted may go on now; they are taken."""
        self._balance = min(self._at_once, self._balance + (now_s - self._as_of_s) * self._per_s)
        self._as_of_s = now_s
        taken = min(wanted, int(self._balance))
        self._balance -= taken
        return taken
