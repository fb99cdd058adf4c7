"""The synchronous push consumer."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Self, overload

from popclient._arguments import as_timedelta, is_async
from popclient._engine.flow import Cached
from popclient._engine.options import RECEIVE_BATCH_MAX, PushOptions, as_interceptors, consumption_seconds
from popclient._engine.push import PushConsumerCore
from popclient._engine.runner import ThreadRunner
from popclient._loop import loop_thread
from popclient.config import ClientConfig
from popclient.listening import BatchListener, Interceptor, Listener
from popclient.simple_consumer import Topics, as_topics

MEBIBYTE = 1024 * 1024


class PushConsumer:
    """Hands the messages of a consumer group to a listener, many at a time, and settles them by what it returns.

    endpoints: "host:port;host:port", a ClientConfig, or nothing (environment ROCKETMQ_ENDPOINTS).
    topics: one, several, or a mapping to what is wanted of each: "*", tags such as "a || b", or a FilterExpression.
    listener: called with a message; returns ConsumeResult.SUCCESS, which acks it, or FAILURE. FAILURE, nothing, an
        exception, or `consumption_timeout` seconds without a result (waiting for its turn included): the message comes
        again after the group's retry interval, until its attempts are used up and it becomes a dead letter.
        What waits for half of that time without a turn is given back to the server, and its attempt does not count.
    batch_size: given, the listener gets a read-only sequence of up to that many messages of one topic, whatever is
        there, and its result counts for all of them.
    concurrency: how many threads call the listener. Messages of one message group come one after the other.
    receive_batch_size: how many messages one receive asks for, at most 32.
    max_cached_messages, max_cached_bytes: how much may be in this client's hands, bodies counted. No poll asks for more
        messages than fit; the bytes may be exceeded by what one poll brings.
    consumption_timeout, drain_timeout: seconds or timedeltas.
    interceptors: look on; see `Interceptor`.
    on_disconnect, on_reconnect: see ClientConfig.

    >>> def listener(message):
    ...     print(message.text)
    ...     return ConsumeResult.SUCCESS
    >>> PushConsumer("127.0.0.1:8081", "billing", "orders", listener).run()    # doctest: +SKIP
    """

    @overload
    def __init__(
        self,
        endpoints: str | ClientConfig | None,
        group: str,
        topics: Topics,
        listener: Listener,
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
        listener: BatchListener,
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
        listener: Listener | BatchListener,
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
        if is_async(listener):
            raise TypeError(f"listener {listener!r} is a coroutine function; use popclient.aio.PushConsumer")
        self._config = ClientConfig.of(endpoints).with_callbacks(on_disconnect, on_reconnect)
        self._thread = loop_thread()
        self._core = PushConsumerCore(self._config, options, partial(ThreadRunner, post=self._thread.post))

    def start(self) -> None:
        """Looks the topics up, opens the session and begins to consume; raises NotFound, Unreachable and so on."""
        self._thread.close_at_exit(self._core)
        self._thread.run(self._core.start)

    def run(self) -> None:
        """Consumes until SIGTERM or SIGINT (in the main thread), or until somebody closes it; then it is closed.

        Raises the server's refusal if that ends it: its rights were withdrawn, its group was deleted.
        """
        ending: SimpleQueue[None] = SimpleQueue()  # unlike an Event it may be told by a signal handler
        self._core.when_ended = lambda: ending.put(None)
        with _Signals(ending) as signals, self:
            ending.get()
            signals.restore()  # whoever asks a second time does not wait for the draining
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

    def close(self) -> None:
        """Stops polling, gives back what the listener has not begun (no attempt is burnt), waits up to `drain_timeout`
        for what it has begun, finishes waiting acks and says goodbye within `close_timeout`.

        Closing twice is fine. In the listener it returns at once, and the consumer ends after it.
        """
        drain_timeout = self._core.options.drain_timeout
        if self._core.is_inside():
            self._thread.post(lambda: self._core.begin_closing(drain_timeout) and None)
        else:
            self._thread.forget(self._core)
            self._thread.run(lambda: self._core.close(drain_timeout))

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "healthy" if self.healthy else "not connected"
        return f"<PushConsumer {self._config.endpoints} group={self.group!r} {state}>"


class _Signals:
    """While it lasts SIGTERM and SIGINT end the waiting; without effect outside the main thread."""

    def __init__(self, ending: SimpleQueue[None]) -> None:
        self._ending = ending
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, lambda *_: self._ending.put(None))
        return self

    def restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def __exit__(self, *_: object) -> None:
        self.restore()
