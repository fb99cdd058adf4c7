"""Where the clients meet OpenTelemetry: nowhere, unless the process has a tracer provider.

Looked up anew for every call, for one dictionary access: a provider may be set after a client was made. Whoever has no
provider pays no more, and never loads the API.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from popclient.config import ClientConfig
from popclient.errors import PopError
from popclient.listening import Consumption, Interceptor
from popclient.message import Message, MessageView

if TYPE_CHECKING:
    from popclient.otel import Tracing


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


def receiving(config: ClientConfig, group: str, topic: str, views: Sequence[MessageView], began_ns: int) -> None:
    """Messages have been received; `began_ns` is when they were asked for, in epoch nanoseconds."""
    active = tracing(config) if views else None
    if active is not None:
        active.received(group, topic, views, began_ns)


def carrying(config: ClientConfig, message: Message) -> Message:
    """The message with the current trace context."""
    if tracing(config) is None:
        return message
    from popclient import otel

    return otel.carrying(message)


class Onlooker(Interceptor):
    """The spans of a push consumer."""

    def __init__(self, config: ClientConfig, group: str) -> None:
        self._config = config
        self._group = group
        self._open: dict[int, Work] = {}

    def after_receive(self, topic: str, messages: Sequence[MessageView], error: PopError | None, /) -> None:
        receiving(self._config, self._group, topic, messages, 0)

    def before_consume(self, messages: Sequence[MessageView], /) -> None:
        active = tracing(self._config)
        if active is not None:
            self._open[id(messages)] = active.processing(self._group, messages).__enter__()

    def after_consume(self, messages: Sequence[MessageView], consumption: Consumption, /) -> None:
        if (work := self._open.pop(id(messages), None)) is not None:
            work.settle([consumption])
            error = consumption.error
            work.__exit__(type(error) if error else None, error, None)

    def before_ack(self, message: MessageView, /) -> None:
        active = tracing(self._config)
        if active is not None:
            self._open[id(message)] = active.acking(self._group, [message]).__enter__()

    def after_ack(self, message: MessageView, error: PopError | None, /) -> None:
        if (work := self._open.pop(id(message), None)) is not None:
            work.settle([error])
            work.__exit__(None, None, None)


def tracing(config: ClientConfig) -> Tracing | None:
    """What makes spans; None where nobody wants any."""
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
        """Nobody asks."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""
