"""Spans of what clients do, for OpenTelemetry: send, receive, process, ack.

They come by themselves as soon as the process has a tracer provider (of `opentelemetry-sdk`, say); without one, or with
`ClientConfig(tracing="off")`, there are none. A message carries the context of its sending in its system property
`trace_context` (W3C traceparent), as RocketMQ's clients do, so a trace crosses languages.

`tracing="link"` (the default) begins a trace of its own for each message's processing, linked to that of its sending;
`tracing="child"` continues the sender's. A push consumer's listener runs inside the span of its processing; who
receives by himself opens it with `processing`:

    for message in consumer:
        with otel.processing(consumer, message):
            ...
            consumer.ack(message)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Protocol, Self

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from popclient._version import VERSION
from popclient.config import ClientConfig, parse_endpoints
from popclient.errors import PopError
from popclient.listening import ConsumeStatus, Consumption
from popclient.message import Message, MessageView

_TRACEPARENT: Final = "traceparent"
_propagator: Final = TraceContextTextMapPropagator()


class TracedConsumer(Protocol):
    """A SimpleConsumer of popclient or popclient.aio."""

    _config: ClientConfig

    @property
    def group(self) -> str: ...


def processing(consumer: TracedConsumer, messages: MessageView | Sequence[MessageView]) -> Working:
    """A block in which messages are processed: the span "process TOPIC", current inside it.

    What the block raises is recorded. Not for a push consumer's listener, which has such a span already.
    """
    listed = [messages] if isinstance(messages, MessageView) else messages
    return Tracing(consumer._config).processing(consumer.group, listed)


def carrying(message: Message, context: Context | None = None) -> Message:
    """The message with the current trace context, unless it has one."""
    if message.trace_context is not None:
        return message
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, context)
    return replace(message, trace_context=carrier[_TRACEPARENT]) if carrier else message


class Working:
    """A span while its work is done."""

    def __init__(self, span: Span, messages: Sequence[Message] = (), *, is_current: bool = False) -> None:
        self.span = span
        self.messages = messages
        self._is_current = is_current
        self._token: Any = None

    def settle(self, outcomes: Sequence[object], /) -> None:
        """What came of it: of a sent message its receipt or a PopError, of an ack None or that, of a listener how it
        ended."""
        failures = [each for each in outcomes if isinstance(each, PopError)]
        for each in outcomes:
            if isinstance(each, Consumption) and each.status is not ConsumeStatus.SUCCESS:
                self.span.set_attribute("popmq.consume.status", each.status.value)
                self.span.set_status(Status(StatusCode.ERROR, each.status.value))
        if failures:
            self.span.set_attribute("error.type", failures[0].name)
            more = f"; {len(failures)} of {len(outcomes)} failed" if len(outcomes) > 1 else ""
            self.span.set_status(Status(StatusCode.ERROR, f"{failures[0]}{more}"))
        elif len(outcomes) == 1 and (message_id := getattr(outcomes[0], "message_id", None)):
            self.span.set_attribute("messaging.message.id", message_id)

    def __enter__(self) -> Self:
        if self._is_current:
            self._token = contexts.attach(trace.set_span_in_context(self.span))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None, /
    ) -> None:
        if self._token is not None:
            contexts.detach(self._token)
        if error is not None:
            self.span.record_exception(error)
            self.span.set_attribute("error.type", getattr(error, "name", type(error).__qualname__))
            self.span.set_status(Status(StatusCode.ERROR, str(error)))
        self.span.end()


class Tracing:
    """Makes the spans of one client."""

    def __init__(self, config: ClientConfig, provider: TracerProvider | None = None) -> None:
        self._config = config
        self._tracer = trace.get_tracer("popclient", VERSION, provider)

    def sending(self, messages: Sequence[Message], operation: str = "send") -> Working:
        """The span "send TOPIC", and the messages with its context; those that have one already are linked to."""
        attributes = self._attributes(operation, "send", {message.topic for message in messages}, len(messages))
        if len(messages) == 1:
            attributes |= _of_message(messages[0])
        links = _links(message.trace_context for message in messages)
        name = _name(operation, attributes)
        span = self._tracer.start_span(name, kind=SpanKind.PRODUCER, attributes=attributes, links=links)
        context = trace.set_span_in_context(span)
        return Working(span, [carrying(message, context) for message in messages])

    def received(self, group: str, topic: str, views: Sequence[MessageView], began_ns: int | None) -> None:
        """The span "receive TOPIC", which is over; a trace of its own where no caller has begun it (None)."""
        attributes = self._attributes("receive", "receive", {topic}, len(views), group)
        links = _links(view.trace_context for view in views)
        name = _name("receive", attributes)
        parent = Context() if began_ns is None else None
        self._tracer.start_span(name, parent, SpanKind.CLIENT, attributes, links, start_time=began_ns).end()

    def processing(self, group: str, views: Sequence[MessageView]) -> Working:
        """The span "process TOPIC", the current one while it is open."""
        attributes = self._attributes("process", "process", {view.topic for view in views}, len(views), group)
        name = _name("process", attributes)
        if len(views) == 1:
            attributes |= _of_view(views[0])
        parent, links = self._origin(views)
        span = self._tracer.start_span(name, parent, SpanKind.CONSUMER, attributes, links)
        return Working(span, is_current=True)

    def acking_processed(self, group: str, view: MessageView, processed: Working | None) -> Working:
        """The span "ack TOPIC", a child of the span of the message's processing, not of the current span."""
        context = Context() if processed is None else trace.set_span_in_context(processed.span, Context())
        return self.acking(group, [view], context)

    def acking(self, group: str, views: Sequence[MessageView], context: Context | None = None) -> Working:
        """The span "ack TOPIC" within the context, or the current one."""
        attributes = self._attributes("ack", "settle", {view.topic for view in views}, len(views), group)
        if len(views) == 1:
            attributes |= _of_view(views[0])
        name = _name("ack", attributes)
        is_inside = trace.get_current_span(context).get_span_context().is_valid
        parent, links = (context, _links(view.trace_context for view in views)) if is_inside else self._origin(views)
        return Working(self._tracer.start_span(name, parent, SpanKind.CLIENT, attributes, links))

    def _origin(self, views: Sequence[MessageView]) -> tuple[Context, list[Link]]:
        """The parent and the links of what is done with the messages.

        Never the current span: a task was perhaps started inside one that has nothing to do with the message.
        """
        carried = views[0].trace_context if len(views) == 1 else None
        if carried and self._config.tracing == "child":
            return _propagator.extract({_TRACEPARENT: carried}, Context()), []
        return Context(), _links(view.trace_context for view in views)

    def _attributes(
        self, operation: str, kind: str, topics: set[str], count: int, group: str | None = None
    ) -> dict[str, str | int | Sequence[str]]:
        server = parse_endpoints(self._config.endpoints)[0]
        found: dict[str, str | int | Sequence[str]] = {
            "messaging.system": "rocketmq",
            "messaging.operation.name": operation,
            "messaging.operation.type": kind,
            "server.address": server.host,
            "server.port": server.port,
        }
        if len(topics) == 1:
            found["messaging.destination.name"] = next(iter(topics))
        if count != 1:
            found["messaging.batch.message_count"] = count
        if group is not None:
            found["messaging.consumer.group.name"] = group
        if self._config.namespace:
            found["messaging.rocketmq.namespace"] = self._config.namespace
        return found


def _name(operation: str, attributes: dict[str, Any]) -> str:
    return f"{operation} {attributes.get('messaging.destination.name', '')}".strip()


def _links(trace_contexts: Any) -> list[Link]:
    """To each context once, in order; what is none is passed over."""
    found: list[Link] = []
    for carried in dict.fromkeys(trace_contexts):
        if carried:
            context = trace.get_current_span(_propagator.extract({_TRACEPARENT: carried}, Context())).get_span_context()
            if context.is_valid:
                found.append(Link(context))
    return found


def _of_message(message: Message) -> dict[str, str | int | Sequence[str]]:
    return _rocketmq(message.tag, tuple(message.keys), message.message_group)


def _of_view(view: MessageView) -> dict[str, str | int | Sequence[str]]:
    found = _rocketmq(view.tag, view.keys, view.message_group)
    return found | {
        "messaging.message.id": view.message_id,
        "messaging.rocketmq.message.type": view.message_type.lower(),
    }


def _rocketmq(tag: str | None, keys: tuple[str, ...], group: str | None) -> dict[str, str | int | Sequence[str]]:
    found: dict[str, str | int | Sequence[str]] = {}
    if tag is not None:
        found["messaging.rocketmq.message.tag"] = tag
    if keys:
        found["messaging.rocketmq.message.keys"] = keys
    if group is not None:
        found["messaging.rocketmq.message.group"] = group
    return found
