"""Renews the hold of a message for as long as the work on the message takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol, Self

from popclient._arguments import not_copied
from popclient._loop import Here, LoopThread
from popclient._tasks import begin_task
from popclient._version import log
from popclient.errors import PopError

PARTS: Final = 3  # of a hold: it is renewed when the first has passed, so that two are left for further attempts
RETRY_AFTER: Final = 1.0  # the longest pause after a failed renewal, in seconds


class Held(Protocol):
    """A message that a consumer holds. Its keeper is the block that renews the hold now."""

    _keeper: KeepAlive | None

    @property
    def invisible_until(self) -> datetime: ...


class HoldRenewal(NamedTuple):
    """How a consumer renews the holds of its messages."""

    change: Callable[[Any, timedelta], Awaitable[None]]  # of a message's hold
    length: timedelta
    bridge: Here | LoopThread


class KeepAlive:
    """Renews the hold of a message while the block runs, each time a third of the hold has passed.

    `with message.keep_alive():`, or `async with` for a message of `popclient.aio`. Ack within the block or after it:
    either ends the renewing first. A renewal does not count as a delivery attempt. `lost` is True when the hold has
    ended all the same: then the message is delivered again, perhaps to another consumer.
    """

    __reduce__ = not_copied

    def __init__(
        self,
        message: Held,
        change: Callable[[timedelta], Awaitable[None]],
        length: timedelta,
        bridge: Here | LoopThread,
    ) -> None:
        """change: makes the hold last so long from now. bridge: of the message's consumer."""
        self.lost = False
        self._message = message
        self._change_hold = change
        self._length = length
        self._bridge = bridge
        self._renewing: asyncio.Task[None] | None = None
        self._changing: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._thread().run(self._begin)
        return self

    def __exit__(self, *_: object) -> None:
        self._thread().close(self.end)

    async def __aenter__(self) -> Self:
        if isinstance(self._bridge, LoopThread):
            raise TypeError("this message came to a synchronous consumer; use `with message.keep_alive():`")
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    def _thread(self) -> LoopThread:
        if not isinstance(self._bridge, LoopThread):
            raise TypeError("this message came to an asyncio consumer; use `async with message.keep_alive():`")
        return self._bridge

    async def _begin(self) -> None:
        self._message._keeper = self
        self._renewing = begin_task(self._renew())

    async def end(self) -> None:
        """Returns when nothing changes the hold any more."""
        self._message._keeper = None
        if self._renewing is not None:
            self._renewing.cancel()
        if self._changing is not None:
            await asyncio.wait([self._changing])

    # ---- Renewing ----

    async def _renew(self) -> None:
        length = self._length.total_seconds()
        shortest = min(RETRY_AFTER, length / (PARTS * 4))
        while not self.lost:
            await asyncio.sleep(max(self._left() - length * (PARTS - 1) / PARTS, shortest))
            # A task of its own: `end` waits for a change that is on its way, and does not cancel it.
            self._changing = begin_task(self._change())
            await asyncio.shield(self._changing)

    async def _change(self) -> None:
        try:
            await self._change_hold(self._length)
        except PopError as failure:
            self.lost = not failure.retryable or self._left() <= 0
            what = "is not kept alive" if self.lost else "is kept alive in a moment"
            log.info("%s %s: %s", self._message, what, failure)

    def _left(self) -> float:
        """Seconds until the present hold ends."""
        return (self._message.invisible_until - datetime.now(UTC)).total_seconds()
