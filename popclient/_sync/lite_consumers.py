# Made by scripts/unasync.py from popclient/aio/lite_consumers.py. Do not edit.
"""The synchronous consumers of lite topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta

from popclient._arguments import as_timedelta, is_async
from popclient._engine.options import MEBIBYTE, PushOptions, SimpleOptions, as_topics, asking
from popclient._lite import Begin, LitePushConsumerCore, LiteSimpleConsumerCore, beginning
from popclient._loop import LoopThread
from popclient._sync.callbacks import require_kind, runner_of
from popclient._sync.push_consumer import PushConsumer
from popclient._sync.simple_consumer import SimpleConsumer
from popclient.config import ClientConfig
from popclient.listening import Interceptor, Listener
from popclient.message import MessageView


def _names(given: str | Iterable[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


class LiteSimpleConsumer(SimpleConsumer):
    """A `SimpleConsumer` of lite topics: it receives the messages of those that it subscribes to.

    Safe in threads.

    topic: one of the type LITE.
    lite_topics: to subscribe to at the start; `subscribe_lite` adds others. In an exclusive group this client gets only
        those of them that no other client has; `subscribe_lite` takes them from others.
    on_lost: called with names of `lite_topics` that this client does not get, because another client of the exclusive
        group has them. They are not in `lite_topics` any more. It runs in the client's event loop and must not block.

    >>> with LiteSimpleConsumer("127.0.0.1:8081", "agents", "sessions", ["ada"]) as consumer:    # doctest: +SKIP
    ...     for message in consumer:
    ...         print(message.lite_topic, message.text)
    ...         consumer.ack(message)
    """

    __module__ = "popclient"
    _core: LiteSimpleConsumerCore

    def __init__(
        self,
        endpoints: str | ClientConfig | None,
        group: str,
        topic: str,
        lite_topics: str | Iterable[str] = (),
        *,
        max_messages: int = 32,
        invisible_duration: float | timedelta = 30,
        await_duration: float | timedelta = 15,
        on_disconnect: Callable[[Exception], None] | None = None,
        on_reconnect: Callable[[], None] | None = None,
        on_lost: Callable[[frozenset[str]], None] | None = None,
    ) -> None:
        self._config = ClientConfig.of(endpoints).with_callbacks(on_disconnect, on_reconnect)
        self._defaults = asking(max_messages, invisible_duration, await_duration)
        self._bridge = LoopThread()
        options = SimpleOptions(group, as_topics(topic), self._defaults)
        self._core = LiteSimpleConsumerCore(self._config, options, self._bridge)
        self._core.lite.lite_topics |= set(_names(lite_topics))
        self._core.lite.on_lost = on_lost
        self._bridge.close_at_exit(self._core)

    @property
    def lite_topics(self) -> frozenset[str]:
        """Those that it subscribes to. One that another client of an exclusive group has is not among them, as soon as
        the server has said so; see `on_lost`."""
        return frozenset(self._core.lite.lite_topics)

    def subscribe_lite(self, lite_topics: str | Iterable[str], *, begin: Begin | None = None) -> None:
        """Subscribes to one or several lite topics; in an exclusive group it takes them from other clients. Starts the
        consumer first.

        begin: "min", from the oldest stored message on; "max", only later ones; "last" or None, where the group is.
        Raises ValueError for another `begin`, QuotaExceeded, BadRequest and so on; then `lite_topics` has not changed.
        After Unreachable the server may know of the new ones, until the client has told it all its lite topics: as soon
        as it answers again.
        """
        names, option = _names(lite_topics), beginning(begin)
        self._bridge.run(lambda: self._core.subscribe(names, option))

    def unsubscribe_lite(self, lite_topics: str | Iterable[str]) -> None:
        """Ends subscriptions. The messages that this client holds can still be acked."""
        names = _names(lite_topics)
        self._bridge.run(lambda: self._core.lite.unsubscribe(names))

    def suspend(self, message: MessageView, duration: float | timedelta) -> None:
        """Stops the message's lite topic for `duration`; then the message comes again. This attempt does not count."""
        length = as_timedelta("duration", duration)
        self._bridge.run(lambda: self._core.suspend(message, length))


class LitePushConsumer(PushConsumer):
    """A `PushConsumer` of lite topics: its listener gets the messages of those that it subscribes to.

    Safe in threads. Messages of one lite topic come one after the other.

    topic, lite_topics, on_lost: as of `LiteSimpleConsumer`. The other arguments are those of `PushConsumer`.
    """

    __module__ = "popclient"
    _core: LitePushConsumerCore

    def __init__(
        self,
        endpoints: str | ClientConfig | None,
        group: str,
        topic: str,
        listener: Listener,
        lite_topics: str | Iterable[str] = (),
        *,
        concurrency: int = 20,
        max_cached_messages: int = 1024,
        max_cached_bytes: int = 64 * MEBIBYTE,
        consumption_timeout: float | timedelta = 900,
        drain_timeout: float | timedelta = 30,
        interceptors: Iterable[Interceptor] = (),
        on_disconnect: Callable[[Exception], None] | None = None,
        on_reconnect: Callable[[], None] | None = None,
        on_lost: Callable[[frozenset[str]], None] | None = None,
    ) -> None:
        given = {"topics": topic, "batch_size": None, "receive_batch_size": None}
        options = PushOptions.among(locals() | given)
        require_kind(listener, "LitePushConsumer", is_async=is_async(listener))
        self._config = ClientConfig.of(endpoints).with_callbacks(on_disconnect, on_reconnect)
        self._bridge = LoopThread()
        self._core = LitePushConsumerCore(self._config, options, runner_of(self._bridge))
        self._core.lite.lite_topics |= set(_names(lite_topics))
        self._core.lite.on_lost = on_lost

    @property
    def lite_topics(self) -> frozenset[str]:
        """Those that it subscribes to. One that another client of an exclusive group has is not among them, as soon as
        the server has said so; see `on_lost`."""
        return frozenset(self._core.lite.lite_topics)

    def subscribe_lite(self, lite_topics: str | Iterable[str], *, begin: Begin | None = None) -> None:
        """As `LiteSimpleConsumer.subscribe_lite`."""
        names, option = _names(lite_topics), beginning(begin)
        self.start()
        self._bridge.run(lambda: self._core.lite.subscribe(names, option))

    def unsubscribe_lite(self, lite_topics: str | Iterable[str]) -> None:
        """Ends subscriptions."""
        names = _names(lite_topics)
        self._bridge.run(lambda: self._core.lite.unsubscribe(names))
