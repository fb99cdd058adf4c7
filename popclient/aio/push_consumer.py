"""The asyncio push consumer."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable
from datetime import timedelta
from types import TracebackType
from typing import Self, overload

from popclient._arguments import as_timedelta, is_async
from popclient._engine.flow import Cached
from popclient._engine.options import RECEIVE_BATCH_MAX, PushOptions, as_interceptors, consumption_seconds
from popclient._engine.push import PushConsumerCore
from popclient._engine.runner import TaskRunner
from popclient.config import ClientConfig
from popclient.listening import AsyncBatchListener, AsyncListener, Interceptor
from popclient.push_consumer import MEBIBYTE
from popclient.simple_consumer import Topics, as_topics


class PushConsumer:
    """Hands the messages of a consumer group to a listener, many at a time, and settles them by what it returns.

    Takes what `popclient.PushConsumer` takes; the listener is a coroutine function, and `concurrency` limits how many
    of its tasks run at once. A task whose message has timed out is cancelled. Belongs to the event loop of its first
    use.
    """

    @overload
    def __init__(
        self,
        endpoints: str | ClientConfig | None,
        group: str,
        topics: Topics,
        listener: AsyncListener,
        *,
        batch_size: None = None,
        concurrency: int = ...,
        receive_batch_size: int = ...,
        max_cached_messages: int = ...,
        max_cached_bytes: int = ...,
        consumption_timeout: float | timedelta = ...,
        drain_timeout: float | timedelta = ...,
        interceptors: Iterable[Interceptor] = ...,
        on_disconnect: Callable[[Exception], None] | None = ...,
        on_reconnect: Callable[[], None] | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        endpoints: str | ClientConfig | None,
        group: str,
        topics: Topics,
        listener: AsyncBatchListener,
        *,
        batch_size: int,
        concurrency: int = ...,
        receive_batch_size: int = ...,
        max_cached_messages: int = ...,
        max_cached_bytes: int = ...,
        consumption_timeout: float | timedelta = ...,
        drain_timeout: float | timedelta = ...,
        interceptors: Iterable[Interceptor] = ...,
        on_disconnect: Callable[[Exception], None] | None = ...,
        on_reconnect: Callable[[], None] | None = ...,
    ) -> None: ...
    def __init__(
        self,
        endpoints: str | ClientConfig | None,
        group: str,
        topics: Topics,
        listener: AsyncListener | AsyncBatchListener,
        *,
        batch_size: int | None = None,
        concurrency: int = 20,
        receive_batch_size: int = RECEIVE_BATCH_MAX,
        max_cached_messages: int = 1024,
        max_cached_bytes: int = 64 * MEBIBYTE,
        consumption_timeout: float | timedelta = 900,
        drain_timeout: float | timedelta = 30,
        interceptors: Iterable[Interceptor] = (),
        on_disconnect: Callable[[Exception], None] | None = None,
        on_reconnect: Callable[[], None] | None = None,
    ) -> None:
        options = PushOptions(
            group=group,
            topics=as_topics(topics),
            listener=listener,
            batch_size=batch_size,
            concurrency=concurrency,
            receive_batch_size=receive_batch_size,
            max_cached_messages=max_cached_messages,
            max_cached_bytes=max_cached_bytes,
            consumption_timeout=consumption_seconds(consumption_timeout),
            drain_timeout=as_timedelta("drain_timeout", drain_timeout).total_seconds(),
            interceptors=as_interceptors(interceptors),
        )
        if not is_async(listener):
            raise TypeError(
                f"listener {listener!r} is no coroutine function; write it with `async def`, or use"
                " popclient.PushConsumer, which calls it in threads"
            )
        self._config = ClientConfig.of(endpoints).with_callbacks(on_disconnect, on_reconnect)
        self._core = PushConsumerCore(self._config, options, TaskRunner)

    async def start(self) -> None:
        """Looks the topics up, opens the session and begins to consume; raises NotFound, Unreachable and so on."""
        await self._core.start()

    async def run(self) -> None:
        """Consumes until SIGTERM or SIGINT (where the loop takes signals), or until somebody closes it; then it is
        closed.

        Raises the server's refusal if that ends it: its rights were withdrawn, its group was deleted.
        """
        ending = asyncio.Event()
        self._core.when_ended = ending.set
        taken = _take_signals(ending.set)
        try:
            async with self:
                await ending.wait()
                _leave_signals(taken)  # whoever asks a second time does not wait for the draining
        finally:
            _leave_signals(taken)
        self._core.raise_refusal()

    @property
    def group(self) -> str:
        return self._core.options.group

    @property
    def client_id(self) -> str:
        return self._core.session.client_id

    @property
    def healthy(self) -> bool:
        """Is the session with the server up?"""
        return self._core.session.healthy

    @property
    def cached(self) -> Cached:
        """What was received and is not settled."""
        return self._core.budget.cached

    async def close(self) -> None:
        """Stops polling, gives back what the listener has not begun (no attempt is burnt), waits up to `drain_timeout`
        for what it has begun, finishes waiting acks and says goodbye within `close_timeout`.

        Closing twice is fine. In the listener it returns at once, and the consumer ends after it.
        """
        closing = self._core.begin_closing(self._core.options.drain_timeout)
        if not self._core.is_inside():
            await asyncio.shield(closing)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        state = "healthy" if self.healthy else "not connected"
        return f"<aio.PushConsumer {self._config.endpoints} group={self.group!r} {state}>"


def _leave_signals(taken: list[signal.Signals]) -> None:
    while taken:
        asyncio.get_running_loop().remove_signal_handler(taken.pop())


def _take_signals(end: Callable[[], None]) -> list[signal.Signals]:
    """Those that the loop lets us take: none outside the main thread."""
    taken: list[signal.Signals] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            asyncio.get_running_loop().add_signal_handler(number, end)
        except (NotImplementedError, RuntimeError, ValueError):
            return taken
        taken.append(number)
    return taken
