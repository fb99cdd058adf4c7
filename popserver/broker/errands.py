"""Deeds that must be done though nobody waits for them.

Those of one name are done one after the other, in the order they came. One that the store does not do now is tried
again every second until it is done.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable

import structlog

from popserver.broker.clock import Alarm, Clock
from popserver.domain.errors import PopError
from popserver.domain.retry import SECOND_MS

RETRY_MS = 1 * SECOND_MS

Deed = Callable[[], Awaitable[object]]

log = structlog.get_logger("popserver.errands")


class Errands:
    """What this server has still to do for clients that do not ask."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[Hashable, deque[Deed]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarms: dict[Hashable, Alarm] = {}
        self._closed = False

    def do(self, name: Hashable, deed: Deed) -> None:
        """Have it done, after what that name's others still have to do."""
        waiting = self._waiting.setdefault(name, deque())
        waiting.append(deed)
        if len(waiting) == 1:
            self._start(name)

    async def idle(self) -> None:
        """Return when nothing can be done now: all is done, or waits for the next try."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Finish what is being done, and try nothing again: the next start takes it up."""
        self._closed = True
        for alarm in self._alarms.values():
            alarm.cancel()
        await self.idle()

    def _start(self, name: Hashable) -> None:
        self._alarms.pop(name, None)
        task = asyncio.get_running_loop().create_task(self._work_off(name, self._waiting[name]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work_off(self, name: Hashable, waiting: deque[Deed]) -> None:
        while waiting:
            try:
                await waiting[0]()
            except PopError as error:
                self._try_again(name, error)
                return
            waiting.popleft()
        del self._waiting[name]

    def _try_again(self, name: Hashable, error: PopError) -> None:
        log.warning("what is still to do for a client waits", reason=error.sentence)
        if not self._closed:
            self._alarms[name] = self._clock.call_at(self._clock.now_ms() + RETRY_MS, lambda: self._start(name))
