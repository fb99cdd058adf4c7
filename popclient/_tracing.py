"""Spans of OpenTelemetry, if the process has a tracer provider.

Each call looks for a provider, because it may be set after a client was made. Without a provider this costs one
dictionary access, and the API is not loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self
from weakref import WeakKeyDictionary

from popclient.config import ClientConfig
from popclient.errors import PopError
from popclient.listening import Consumption, Interceptor
from popclient.message import Message, MessageView

if TYPE_CHECKING:
    from popclient.otel import Tracing, Working


class Work(Protocol):
    """A call as a span: `with` it, then say what came of each message."""

    messages: Sequence[Message]

    def settle(self, outcomes: Sequence[object], /) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


def sending(config: ClientConfig, messages: Sequence[Message]) -> Work:
    """Messages on their way to the broker; those of the result carry the span's context."""
    active = tracing(config)
    return _Untraced(messages) if active is None else active.sending(messages)


def acking(config: ClientConfig, group: str, views: Sequence[MessageView]) -> Work:
    """Messages being acked."""
    active = tracing(config)
    return _Untraced() if active is None else active.acking(group, views)


def receiving(config: ClientConfig, group: str, topic: str, views: Sequence[MessageView], began_ns: int | None) -> None:
    """Messages have been received; `began_ns` is when the caller asked for them, epoch nanoseconds; None for polls."""
    active = tracing(config) if views else None
    if active is not None:
        active.received(group, topic, views, began_ns)


def carrying(config: ClientConfig, message: Message) -> Message:
    """The message with the current trace context."""
    if tracing(config) is None:
        return message
    from popclient import otel

    return otel.carrying(message)


class TracingInterceptor(Interceptor):
    """The spans of a push consumer."""

    def __init__(self, config: ClientConfig, group: str) -> None:
        self._config = config
        self._group = group
        self._processing: dict[tuple[MessageView, ...], Working] = {}
        # For the ack, which what failed never gets: so it is forgotten together with the message.
        self._processed: WeakKeyDictionary[MessageView, Working] = WeakKeyDictionary()
        self._acking: dict[MessageView, Working] = {}

    def after_receive(self, topic: str, messages: Sequence[MessageView], error: PopError | None, /) -> None:
        receiving(self._config, self._group, topic, messages, None)

    def before_consume(self, messages: Sequence[MessageView], /) -> None:
        active = tracing(self._config)
        if active is not None:
            self._processing[tuple(messages)] = active.processing(self._group, messages).__enter__()

    def after_consume(self, messages: Sequence[MessageView], consumption: Consumption, /) -> None:
        if (work := self._processing.pop(tuple(messages), None)) is not None:
            work.settle([consumption])
            error = consumption.error
            work.__exit__(type(error) if error else None, error, None)
            self._processed.update(dict.fromkeys(messages, work))

    def before_ack(self, message: MessageView, /) -> None:
        active = tracing(self._config)
        if active is not None:
            processed = self._processed.get(message)
            self._acking[message] = active.acking_processed(self._group, message, processed).__enter__()

    def after_ack(self, message: MessageView, error: PopError | None, /) -> None:
        if (work := self._acking.pop(message, None)) is not None:
            work.settle([error])
            work.__exit__(None, None, None)


def tracing(config: ClientConfig) -> Tracing | None:
    """What makes spans; None without a tracer provider."""
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None or config.tracing == "off" or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return None
    from popclient.otel import Tracing

    return Tracing(config)


class _Untraced:
    __slots__ = ("messages",)

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        self.messages = messages

    def settle(self, outcomes: Sequence[object], /) -> None:
        """Does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""
