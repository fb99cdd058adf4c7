"""Holds that last as long as the work on their message, however long that takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Protocol, Self

from popclient import _convert as convert
from popclient._session import log
from popclient.errors import BadRequest, ClientClosed, NotFound, PopError
from popclient.message import MessageView

PARTS: Final = 3  # of a hold: prolonged after the first, two are left to try again
AGAIN: Final = 1.0  # seconds after a failure at the latest
OVER: Final = (BadRequest, ClientClosed, NotFound)


class Thread(Protocol):
    """What the synchronous client brings: an event loop in a thread."""

    def run(self, work: Callable[[], Coroutine[Any, Any, None]], /) -> None: ...


class Keeping:
    """Keeps the holds of one consumer's messages. `change` renews one."""

    def __init__(
        self, change: Callable[[MessageView, timedelta], Awaitable[None]], length: timedelta, thread: Thread | None
    ) -> None:
        self.change = change
        self.length = length
        self.thread = thread

    def keep(self, message: MessageView) -> KeepAlive:
        return KeepAlive(message, self)


class KeepAlive:
    """While the block runs the hold of a message is renewed, whenever a third of it has passed.

    `with message.keep_alive():`, or `async with` for a message of `popclient.aio`. Ack within the block or after it:
    either stops the renewing first. It burns no attempt. `lost` says that the hold ended all the same: then the message
    comes again, perhaps to somebody else.
    """

    def __init__(self, message: MessageView, keeping: Keeping) -> None:
        self.lost = False
        self._message = message
        self._keeping = keeping
        self._renewing: asyncio.Task[None] | None = None
        self._changing: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._thread().run(self._begin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread().run(self.end)

    async def __aenter__(self) -> Self:
        if self._keeping.thread is not None:
            raise TypeError("this message came to a synchronous consumer; use `with message.keep_alive():`")
        await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.end()

    def _thread(self) -> Thread:
        if self._keeping.thread is None:
            raise TypeError("this message came to an asyncio consumer; use `async with message.keep_alive():`")
        return self._keeping.thread

    async def _begin(self) -> None:
        self._message._keeper = self
        self._renewing = asyncio.get_running_loop().create_task(self._renew())

    async def end(self) -> None:
        """Returns when nothing changes the hold any more."""
        self._message._keeper = None
        if self._renewing is not None:
            self._renewing.cancel()
        if self._changing is not None:
            await asyncio.wait([self._changing])

    # ---- Renewing ----

    async def _renew(self) -> None:
        length = self._keeping.length.total_seconds()
        shortest = min(AGAIN, length / (PARTS * 4))
        while not self.lost:
            await asyncio.sleep(max(self._left() - length * (PARTS - 1) / PARTS, shortest))
            # In a task of its own: whoever ends the renewing waits for a change that is on its way.
            self._changing = asyncio.get_running_loop().create_task(self._change())
            await asyncio.shield(self._changing)

    async def _change(self) -> None:
        try:
            await self._keeping.change(self._message, self._keeping.length)
        except OVER as over:
            log.info("%s is not kept alive: %s", self._message, over)
            self.lost = True
        except PopError as failure:
            log.info("%s is kept alive in a moment: %s", self._message, failure)
            self.lost = self._left() <= 0

    def _left(self) -> float:
        """Seconds of the present hold."""
        return (self._message.invisible_until - convert.now()).total_seconds()
