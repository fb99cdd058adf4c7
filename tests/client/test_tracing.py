"""Spans: nothing without a tracer provider; with one, a trace goes through the broker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import popserver
from popclient import (
    BadRequest,
    ClientConfig,
    ConsumeResult,
    ConsumeStatus,
    Consumption,
    Interceptor,
    InvalidReceiptHandle,
    Message,
    MessageView,
    Producer,
    PushConsumer,
    SimpleConsumer,
    aio,
    otel,
)
from popclient._tracing import TracingInterceptor
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from popserver import EmbeddedBroker
from tests.support.message_views import view_of
from tests.support.scripted_server import ScriptedServer, until, until_in_thread


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with popserver.embedded(min_invisible="100ms") as running:
        yield running


class Spans:
    """What was exported."""

    def __init__(self, provider: TracerProvider) -> None:
        self.tracer = provider.get_tracer("test")
        self._exporter = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def names(self) -> list[str]:
        return [span.name for span in self._exporter.get_finished_spans()]

    def one(self, name: str) -> ReadableSpan:
        until_in_thread(lambda: name in self.names())
        (span,) = (span for span in self._exporter.get_finished_spans() if span.name == name)
        return span


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    provider = TracerProvider()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return Spans(provider)


def trace_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.trace_id


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.mark.user("U24")
def test_a_trace_goes_through_the_broker(broker: EmbeddedBroker, spans: Spans) -> None:
    with Producer(broker.endpoint) as producer, SimpleConsumer(broker.endpoint, "billing", "orders") as consumer:
        with spans.tracer.start_as_current_span("request") as request:
            receipt = producer.send("orders", "1", tag="UA", keys=["a", "b"])
        (message,) = consumer.receive()
        with otel.processing(consumer, message), spans.tracer.start_as_current_span("work"):
            consumer.ack(message)
    sent, received, processed, acked = (spans.one(f"{name} orders") for name in ("send", "receive", "process", "ack"))
    assert trace_id(sent) == request.get_span_context().trace_id
    assert message.trace_context is not None
    assert message.trace_context.startswith(f"00-{trace_id(sent):032x}-{span_id(sent):016x}-")
    assert [each.kind for each in (sent, received, processed, acked)] == [
        SpanKind.PRODUCER,
        SpanKind.CLIENT,
        SpanKind.CONSUMER,
        SpanKind.CLIENT,
    ]
    assert linked(received) == linked(processed) == linked(acked) == [span_id(sent)]
    work = spans.one("work")
    assert work.parent is not None
    assert work.parent.span_id == span_id(processed)
    assert trace_id(acked) == trace_id(work) == trace_id(processed) != trace_id(sent)
    host, _, port = broker.endpoint.partition(":")
    of_all = {"messaging.system": "rocketmq", "messaging.destination.name": "orders", "server.address": host}
    of_message = {"messaging.rocketmq.message.tag": "UA", "messaging.rocketmq.message.keys": ("a", "b")}
    of_message["messaging.message.id"] = receipt.message_id
    assert facts(sent) == of_all | of_message | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "server.port": int(port),
    }
    for span in (received, processed, acked):
        assert facts(span).items() >= (of_all | {"messaging.consumer.group.name": "billing"}).items()
    for span in (processed, acked):
        assert facts(span).items() >= of_message.items()
    assert received.start_time is not None
    assert received.end_time is not None
    assert received.start_time <= received.end_time


def test_a_child_continues_the_senders_trace(broker: EmbeddedBroker, spans: Spans) -> None:
    config = ClientConfig(broker.endpoint, tracing="child")
    with Producer(config) as producer, SimpleConsumer(config, "billing", "orders") as consumer:
        producer.send("orders", "1")
        (message,) = consumer.receive()
        with pytest.raises(ZeroDivisionError), otel.processing(consumer, message):
            _ = 1 // 0
        consumer.ack(message)
    sent, processed, acked = (spans.one(f"{name} orders") for name in ("send", "process", "ack"))
    assert {trace_id(sent)} == {trace_id(processed), trace_id(acked)}
    assert processed.parent is not None
    assert (processed.parent.span_id, linked(processed)) == (span_id(sent), [])
    assert processed.status.status_code is StatusCode.ERROR
    assert [event.name for event in processed.events] == ["exception"]
    assert facts(processed)["error.type"] == "ZeroDivisionError"


def test_a_push_consumers_listener_runs_inside_its_span(broker: EmbeddedBroker, spans: Spans) -> None:
    done = threading.Event()

    def listen(message: MessageView) -> ConsumeResult:
        with spans.tracer.start_as_current_span(f"work {message.text}"):
            pass
        done.set()
        return ConsumeResult.SUCCESS if message.text == "good" else ConsumeResult.FAILURE

    with Producer(broker.endpoint) as producer:
        producer.send("orders", "good")
    with PushConsumer(broker.endpoint, "billing", "orders", listen):
        assert done.wait(60)
        until_in_thread(lambda: "ack orders" in spans.names())
    sent, received, processed, acked = (spans.one(f"{name} orders") for name in ("send", "receive", "process", "ack"))
    work = spans.one("work good")
    assert work.parent is not None
    assert work.parent.span_id == span_id(processed)
    assert linked(received) == linked(processed) == linked(acked) == [span_id(sent)]
    assert processed.status.status_code is StatusCode.UNSET
    with Producer(broker.endpoint) as producer:
        producer.send("later", "bad")
    with PushConsumer(broker.endpoint, "billing", "later", listen):
        failed = spans.one("process later")
    assert failed.status.status_code is StatusCode.ERROR
    assert facts(failed)["popmq.consume.status"] == "FAILED"


@pytest.mark.parametrize("tracing", ["link", "child"])
async def test_what_a_push_consumer_does_belongs_to_its_messages_not_to_whoever_started_it(
    broker: EmbeddedBroker, spans: Spans, tracing: Any
) -> None:
    config = ClientConfig(broker.endpoint, tracing=tracing)

    async def listen(_: MessageView) -> ConsumeResult:
        return ConsumeResult.SUCCESS

    async with aio.Producer(config) as producer:
        await producer.send("orders", "1")
    with spans.tracer.start_as_current_span("startup") as startup:
        async with aio.PushConsumer(config, "billing", "orders", listen):
            await until(lambda: "ack orders" in spans.names())
    sent, received, processed, acked = (spans.one(f"{name} orders") for name in ("send", "receive", "process", "ack"))
    assert acked.parent is not None
    assert acked.parent.span_id == span_id(processed)
    assert trace_id(acked) == trace_id(processed) != startup.get_span_context().trace_id
    assert linked(acked) == [span_id(sent)]
    assert (trace_id(processed) == trace_id(sent)) is (tracing == "child")
    assert received.parent is None


class Kept(Interceptor):
    """Keeps what it was shown."""

    def __init__(self) -> None:
        self.shown: list[Sequence[MessageView]] = []

    def before_consume(self, messages: Sequence[MessageView], /) -> None:
        self.shown.append(messages)


async def test_a_message_that_times_out_before_its_turn_leaves_no_span_open(
    server: ScriptedServer, spans: Spans
) -> None:
    server.capabilities, server.fifo = "", True
    request = rpc.SendMessageRequest()
    for group in "ab":
        message = request.messages.add(topic=pb.Resource(name="t"), body=group.encode())
        message.system_properties.message_id = message.system_properties.message_group = group
    server.store(request)

    async def listen(_: MessageView) -> ConsumeResult:
        await asyncio.Event().wait()
        return ConsumeResult.SUCCESS

    given: dict[str, Any] = {"concurrency": 1, "consumption_timeout": 0.05, "interceptors": [Kept()]}
    async with aio.PushConsumer(server.endpoints, "push", "t", listen, **given):
        await until(lambda: spans.names().count("process t") >= 2)


def test_an_ack_without_a_processing_is_a_trace_of_its_own(spans: Spans) -> None:
    onlooker, view = TracingInterceptor(ClientConfig("a:1"), "billing"), view_of("1", "orders")
    with spans.tracer.start_as_current_span("foreign"):
        onlooker.before_ack(view)
        onlooker.after_ack(view, None)
    assert spans.one("ack orders").parent is None


def test_of_a_message_that_is_gone_no_span_is_kept(spans: Spans) -> None:
    onlooker = TracingInterceptor(ClientConfig("a:1"), "billing")
    for number in range(10):
        view = view_of(str(number), "orders")
        onlooker.before_consume((view,))
        onlooker.after_consume((view,), Consumption(ConsumeStatus.FAILED, 0.0))
    assert spans.names() == ["process orders"] * 10
    assert len(onlooker._processed) == 1


async def test_asyncio(broker: EmbeddedBroker, spans: Spans) -> None:
    async with (
        aio.Producer(broker.endpoint) as producer,
        aio.SimpleConsumer(broker.endpoint, "billing", "orders") as consumer,
    ):
        with spans.tracer.start_as_current_span("request"):
            await producer.send("orders", "1")
            await producer.send_many([Message("orders", "2"), Message("orders", "3")])
        messages: list[MessageView] = []
        while len(messages) < 3:
            messages += await consumer.receive()
        with otel.processing(consumer, messages):
            await consumer.ack(messages)
    assert {message.trace_context[:35] for message in messages if message.trace_context} == {
        f"00-{trace_id(spans.one('request')):032x}"
    }
    processed, acked = spans.one("process orders"), spans.one("ack orders")
    assert len(linked(processed)) == len(linked(acked)) == 2, "those sent together share a span"
    assert facts(processed)["messaging.batch.message_count"] == 3


def test_what_fails_is_an_error(broker: EmbeddedBroker, spans: Spans) -> None:
    with Producer(broker.endpoint) as producer, SimpleConsumer(broker.endpoint, "billing", "orders") as consumer:
        with pytest.raises(BadRequest):
            producer.send("orders", "1", tag="a|b")
        assert not producer.send_many([Message("both", "1"), Message("both", "2", tag="a|b")]).ok
        producer.send("late", "x")
        producer.send("orders", "x")
        (message,) = consumer.receive(invisible_duration=0.1)
        consumer.receive()
        with pytest.raises(InvalidReceiptHandle):
            message._renew_hold(message.receipt_handle[:8] + "A" + message.receipt_handle[9:], message.invisible_until)
            consumer.ack(message)
    both, acked = spans.one("send both"), spans.one("ack orders")
    assert both.status.description is not None
    assert both.status.description.endswith("1 of 2 failed")
    assert facts(acked)["error.type"] == "INVALID_RECEIPT_HANDLE"
    (refused, _) = (span for span in spans._exporter.get_finished_spans() if span.name == "send orders")
    assert (refused.status.status_code, facts(refused)["error.type"]) == (StatusCode.ERROR, "ILLEGAL_MESSAGE_TAG")


def test_a_context_that_a_message_brings_is_left_alone(broker: EmbeddedBroker, spans: Spans) -> None:
    of_others = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with Producer(broker.endpoint) as producer, SimpleConsumer(broker.endpoint, "billing", "orders") as consumer:
        producer.send(Message("orders", "1", trace_context=of_others))
        producer.send(Message("broken", "1", trace_context="nonsense"))
        (message,) = consumer.receive()
    assert message.trace_context == of_others
    assert linked(spans.one("send orders")) == linked(spans.one("receive orders")) == [0xB7AD6B7169203331]
    assert linked(spans.one("send broken")) == []


def test_off(broker: EmbeddedBroker, spans: Spans) -> None:
    config = ClientConfig(broker.endpoint, tracing="off")
    with Producer(config) as producer, SimpleConsumer(config, "billing", "orders") as consumer:
        producer.send("orders", "1")
        (message,) = consumer.receive()
        consumer.ack(message)
    assert (message.trace_context, spans.names()) == (None, [])
    with pytest.raises(ValueError, match="tracing is 'parent'; it must be 'link', 'child' or 'off'"):
        ClientConfig(tracing="parent")  # type: ignore[arg-type]


def test_without_a_provider_nothing_happens(broker: EmbeddedBroker) -> None:
    """Nor is the API loaded: it may not be there."""
    script = f"""
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opentelemetry":
            raise AssertionError("the API is looked for")
sys.meta_path.insert(0, Gone())
from popclient import Producer, SimpleConsumer, PushConsumer, ConsumeResult
with Producer({broker.endpoint!r}) as producer, SimpleConsumer({broker.endpoint!r}, "billing", "orders") as consumer:
    producer.send("orders", "1")
    producer.send_many([])
    (message,) = consumer.receive()
    consumer.ack(message)
    print(message.trace_context)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("None\n", 0), done.stderr


def test_the_api_alone_does_nothing_either(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    with Producer(broker.endpoint) as producer, SimpleConsumer(broker.endpoint, "billing", "orders") as consumer:
        producer.send("orders", "1")
        (message,) = consumer.receive()
    assert message.trace_context is None
