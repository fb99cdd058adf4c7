"""The asyncio push consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import overload

from popclient._arguments import is_async
from popclient._engine.flow import Cached
from popclient._engine.options import MEBIBYTE, PushOptions, Topics
from popclient._loop import Here
from popclient._push.core import PushConsumerCore
from popclient.aio.base import ListenerConsumer
from popclient.aio.callbacks import require_kind, runner_of
from popclient.config import ClientConfig
from popclient.listening import AsyncBatchListener, AsyncListener, Interceptor


# sync: Belongs to ... use. => Safe in threads.
# sync: a coroutine function, called => called
# sync: A task ... cancelled. =>
# sync: how many tasks call => how many threads call
class PushConsumer(ListenerConsumer[PushConsumerCore]):
    """Hands the messages of a consumer group to a listener, many at a time, and settles them by what it returns.

    Belongs to the event loop of its first use.

    endpoints: "host:port;host:port", a ClientConfig, or nothing (environment ROCKETMQ_ENDPOINTS).
    topics: one, several, or a mapping to what is wanted of each: "*", tags such as "a || b", or a FilterExpression.
    listener: a coroutine function, called with a message; returns ConsumeResult.SUCCESS, which acks it, or FAILURE.
        FAILURE, None, an exception, or no result within `consumption_timeout` (the wait for its turn included): the
        message is delivered again after the group's retry interval, until its attempts are used up and it becomes a
        dead letter. A task whose message has timed out is cancelled.
        A message that waits for half of that time without a turn goes back to the server; its attempt does not count.
    batch_size: with it, the listener gets a read-only sequence of up to that many messages of one topic, as many as are
        there, and its result counts for all of them.
    concurrency: how many tasks call the listener. Messages of one message group come one after the other.
    receive_batch_size: how many messages one receive asks for, at most 128, or 32 of a server that does not answer a
        receive in one frame. None: 32, and up to 128 while the listener works off as many in a quarter of a second.
    max_cached_messages, max_cached_bytes: how much this client may hold, counted with bodies. No poll asks for more
        messages than fit; one poll may exceed the bytes.
    consumption_timeout, drain_timeout: seconds or timedeltas.
    interceptors: called at each step; see `Interceptor`.
    on_disconnect, on_reconnect: see ClientConfig.

    >>> async def listener(message):
    ...     print(message.text)
    ...     return ConsumeResult.SUCCESS
    >>> await PushConsumer("127.0.0.1:8081", "billing", "orders", listener).run()    # doctest: +SKIP
    """

    __module__ = "popclient.aio"

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
        receive_batch_size: int | None = ...,
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
        receive_batch_size: int | None = ...,
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
        receive_batch_size: int | None = None,
        max_cached_messages: int = 1024,
        max_cached_bytes: int = 64 * MEBIBYTE,
        consumption_timeout: float | timedelta = 900,
        drain_timeout: float | timedelta = 30,
        interceptors: Iterable[Interceptor] = (),
        on_disconnect: Callable[[Exception], None] | None = None,
        on_reconnect: Callable[[], None] | None = None,
    ) -> None:
        options = PushOptions.among(locals())
        require_kind(listener, "PushConsumer", is_async=is_async(listener))
        self._config = ClientConfig.of(endpoints).with_callbacks(on_disconnect, on_reconnect)
        self._bridge = Here()
        self._core = PushConsumerCore(self._config, options, runner_of(self._bridge))

    async def start(self) -> None:
        """Looks the topics up, opens the session and begins to consume; raises NotFound, Unreachable and so on."""
        await self._start()

    @property
    def cached(self) -> Cached:
        """The messages that were received and are not settled yet."""
        return self._core.budget.cached
