"""The life of a consumer that calls a listener: it starts once, and ends once, by its user or by its server."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from popclient._session.session import Session
from popclient._tasks import begin_task
from popclient._version import log
from popclient.errors import ClientClosed, PopError, for_caller


class ConsumerLife(ABC):
    """Belongs to one event loop.

    group: for the log. drain_timeout: how many seconds running calls of the listener have if the server ends the
    consumer.
    """

    session: Session

    def __init__(self, group: str, drain_timeout: float) -> None:
        self.when_ended: Callable[[], None] = lambda: None
        self.refusal: PopError | None = None  # why the server has ended it
        self._group = group
        self.drain_timeout = drain_timeout
        self._starting: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when it has started. Raises the PopError that prevents it."""
        if self._closing is not None:
            raise ClientClosed
        if self._starting is None or (self._starting.done() and self._starting.exception()):
            self._starting = begin_task(self._start())
        try:
            await asyncio.shield(self._starting)
        except asyncio.CancelledError:
            if self._starting.cancelled():
                self.raise_refusal()
            raise

    def raise_refusal(self) -> None:
        """Raises the PopError with which the server has ended it."""
        if self.refusal is not None:
            raise for_caller(self.refusal)

    async def close(self, drain_timeout: float = 0.0) -> None:
        """Returns when the consumer is closed. A process that ends without `close` does not wait for the listener."""
        await asyncio.shield(self.begin_closing(drain_timeout))

    def begin_closing(self, drain_timeout: float) -> asyncio.Task[None]:
        """Ends it. The listener may finish within `drain_timeout` seconds. A second call waits for the same end."""
        if self._closing is None:
            self._call_no_more()
            self._closing = begin_task(self._close(drain_timeout))
        return self._closing

    def _end(self, refusal: PopError) -> None:
        """The server has ended it: its group was deleted, or its rights were taken away."""
        if self._closing is None:
            self.refusal = refusal
            log.error("the consumer of group %s ends: %s", self._group, refusal)
            self.begin_closing(self.drain_timeout)

    async def _stop_starting(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)

    @abstractmethod
    def is_inside(self) -> bool:
        """Whether the caller is the listener, which must not wait for the end of the consumer: the end waits for it."""

    @abstractmethod
    async def _start(self) -> None: ...

    @abstractmethod
    def _call_no_more(self) -> None:
        """No new call of the listener begins from now on."""

    @abstractmethod
    async def _close(self, drain_timeout: float) -> None: ...
