"""Metrics of clients: sent by OpenTelemetry's own exporter to the port for clients, and added up for a scrape."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import grpc.aio
import pytest
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import Observation
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as wire
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from structlog.testing import capture_logs

from popproto.v2 import definition_pb2 as pb
from popserver.app import App
from popserver.clients.settings import ask_for_metrics
from popserver.engine.clock import ManualClock
from popserver.metrics.client_numbers import (
    FORGET_MS,
    LIMITS_MS,
    OLD_MS,
    ClientGauge,
    ClientHistogram,
    ClientMeters,
    series_of,
)
from popserver.model.budget import Budget
from popserver.model.group import NewGroup
from popserver.model.names import Resource
from popserver.model.topic import NewTopic
from tests.metrics.test_exported import scraped, value
from tests.web.conftest import started

TOPIC, GROUP = Resource("", "orders"), Resource("", "billing")
SEND = series_of("rocketmq_send_cost_time", TOPIC, GROUP, "success")
START_MS = 1_800_000_000_000
LIMITS = LIMITS_MS["rocketmq_send_cost_time"]


@contextmanager
def a_client(endpoint: str, client_id: str) -> Iterator[MeterProvider]:
    """What official clients have inside: OpenTelemetry's SDK, with their views."""
    exporter = OTLPMetricExporter(endpoint=f"http://{endpoint}", insecure=True, headers={"x-mq-client-id": client_id})
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
    views = [
        View(instrument_name=name, aggregation=ExplicitBucketHistogramAggregation(limits))
        for name, limits in LIMITS_MS.items()
    ]
    provider = MeterProvider(metric_readers=[reader], views=views)
    yield provider
    provider.shutdown()


def _work(endpoint: str) -> None:
    pair = {"topic": "orders", "consumer_group": "billing"}
    for client_id in ("c1", "c2"):
        with a_client(endpoint, client_id) as provider:
            meter = provider.get_meter("org.apache.rocketmq.message")
            sends = meter.create_histogram("rocketmq_send_cost_time")
            process = meter.create_histogram("rocketmq_process_time")
            meter.create_observable_gauge(
                "rocketmq_consumer_cached_messages", [lambda _: [Observation(7, {**pair, "client_id": "c"})]]
            )
            for cost_ms in (3.0, 30.0):
                sends.record(cost_ms, {"topic": "orders", "client_id": client_id, "invocation_status": "success"})
                assert provider.force_flush()
            process.record(50.0, {**pair, "client_id": client_id, "invocation_status": "failure"})
            process.record(50.0, {"topic": "no such topic", "consumer_group": "billing"})
            meter.create_histogram("something_else").record(1.0)


async def test_numbers_of_all_clients_are_added_up(database_url: str) -> None:
    async with started(database_url, client_metrics=True) as app:
        await app.broker.catalog.create_topic(NewTopic(TOPIC, 1))
        await app.broker.catalog.create_group(NewGroup(GROUP))
        await asyncio.to_thread(_work, app.endpoint)
        samples = await scraped(app)
    sends = {"topic": "orders", "invocation_status": "success"}
    assert value(samples, "rocketmq_send_cost_time_count", **sends) == 4
    assert value(samples, "rocketmq_send_cost_time_sum", **sends) == 66
    assert value(samples, "rocketmq_send_cost_time_bucket", **sends, le="5.0") == 2
    pair = {"topic": "orders", "consumer_group": "billing"}
    assert value(samples, "rocketmq_process_time_count", **pair, invocation_status="failure") == 2
    assert value(samples, "rocketmq_process_time_count", topic="no such topic") is None
    assert value(samples, "rocketmq_consumer_cached_messages", **pair) == 14
    assert value(samples, "popmq_budget_used", budget="client metrics") == 8
    assert not [name for name, _ in samples if name.startswith("something")]


async def export(endpoint: str, request: wire.ExportMetricsServiceRequest) -> wire.ExportMetricsServiceResponse:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        answer: wire.ExportMetricsServiceResponse = await MetricsServiceStub(channel).Export(request)
        return answer


def a_request(points: int = 1, *, metric: str = "rocketmq_send_cost_time") -> wire.ExportMetricsServiceRequest:
    request = wire.ExportMetricsServiceRequest()
    histogram = request.resource_metrics.add().scope_metrics.add().metrics.add(name=metric).histogram
    for _ in range(points):
        histogram.data_points.add(explicit_bounds=[1.0], bucket_counts=[1, 1])
    return request


async def test_requests_that_no_client_sends_are_refused(sqlite_url: str) -> None:
    async with started(sqlite_url, client_metrics=True) as app:
        answer = await export(app.endpoint, a_request())
        assert answer.partial_success.rejected_data_points == 1
        assert "other limits than 1, 5, 10" in answer.partial_success.error_message
        assert not (await export(app.endpoint, a_request(metric="rocketmq_consumer_cached_bytes"))).ByteSize()
        for request, reason in ((a_request(2_001), "2001 points; at most 2000"), (_wide(), "17 resources; at most 16")):
            with pytest.raises(grpc.aio.AioRpcError, match=reason) as refused:
                await export(app.endpoint, request)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError, match="at most 262144 bytes"):
            await export(app.endpoint, a_request(20_000))


def _wide() -> wire.ExportMetricsServiceRequest:
    return wire.ExportMetricsServiceRequest(resource_metrics=[{} for _ in range(17)])


async def test_off_there_is_no_such_service(sqlite_url: str) -> None:
    async with started(sqlite_url) as app:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await export(app.endpoint, a_request())
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_where_callers_sign_this_call_is_signed_too(sqlite_url: str) -> None:
    secret = {"auth": True, "admin_access_key": "root", "admin_secret": "a-long-secret-of-the-admin"}
    async with started(sqlite_url, client_metrics=True, **secret) as app:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await export(app.endpoint, a_request())
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_without_the_extra_the_server_runs_and_says_so(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "popserver.metrics.rpc", None)
    monkeypatch.delattr("popserver.metrics.rpc", raising=False)
    with capture_logs() as said:
        async with started(sqlite_url, client_metrics=True) as app:
            assert app.client_meters is None
    assert [each for each in said if "pip install 'popmq[otlp]'" in each["event"]]


@pytest.mark.parametrize(
    ("language", "must_sign", "is_asked"),
    [
        (pb.JAVA, True, True),
        (pb.PYTHON, False, True),
        (pb.PYTHON, True, False),
        (pb.GOLANG, False, False),
    ],
)
def test_clients_that_can_send_them_are_asked(language: int, must_sign: bool, is_asked: bool) -> None:
    own = pb.Endpoints(addresses=[pb.Address(host="h", port=1)])
    merged = pb.Settings(user_agent=pb.UA(language=language))  # type: ignore[arg-type]
    ask_for_metrics(merged, own, must_sign=must_sign)
    assert merged.metric.on is is_asked
    assert (merged.metric.endpoints == own) is is_asked
    merged.access_point.addresses.add(host="outside", port=2)
    ask_for_metrics(merged, own, must_sign=must_sign)
    assert (merged.metric.endpoints == merged.access_point) is is_asked


def sent(
    counts: list[int], total: float, *, client: str = "c1", started_ms: int = START_MS, is_total: bool = True
) -> ClientHistogram:
    """A histogram with these first counts."""
    counts = counts + [0] * (len(LIMITS) + 1 - len(counts))
    return ClientHistogram(client, SEND, LIMITS, counts, total, started_ms * 1_000_000, is_total)


async def _nothing() -> None:
    """Nothing has to settle."""


def meters(clock: ManualClock, limit: int = 100) -> ClientMeters:
    return ClientMeters(Budget("client metrics", limit, "series", "max_client_metric_series"), clock)


def counted(clients: ClientMeters) -> tuple[int, float]:
    return clients._totals[SEND].count, clients._totals[SEND].total


def test_totals_are_counted_once_whatever_a_client_repeats() -> None:
    clients = meters(ManualClock(START_MS))
    for each in (sent([1], 1.0), sent([1], 1.0), sent([2, 1], 9.0), sent([3], 3.0, client="c2")):
        assert clients.take(each) == ""
    assert counted(clients) == (6, 12.0)
    clients.take(sent([1], 1.0, started_ms=START_MS + 5))  # the client began anew
    assert counted(clients) == (7, 13.0)
    clients.take(sent([1], 1.0, is_total=False))
    assert counted(clients) == (8, 14.0)


def test_what_a_client_counted_before_the_server_started_does_not_count() -> None:
    clients = meters(ManualClock(START_MS))
    clients.take(sent([100], 100.0, started_ms=START_MS - 1))
    assert counted(clients) == (0, 0.0)
    clients.take(sent([101], 102.0, started_ms=START_MS - 1))
    assert counted(clients) == (1, 2.0)


async def test_there_is_room_for_so_many_clients_and_again_when_they_are_gone() -> None:
    clock = ManualClock(START_MS)
    clients = meters(clock, limit=2)
    assert [bool(clients.take(sent([1], 1.0, client=f"c{number}"))) for number in range(3)] == [False, False, True]
    assert "--max-client-metric-series" in clients.take(sent([1], 1.0, client="c3"))
    await clock.advance(FORGET_MS + 1, _nothing)
    assert clients.take(sent([1], 1.0, client="c3")) == ""
    assert counted(clients) == (3, 3.0)


async def test_what_is_cached_is_known_for_a_while() -> None:
    clock = ManualClock(START_MS)
    clients = meters(clock)
    series = series_of("rocketmq_consumer_cached_bytes", TOPIC, GROUP, "")
    assert clients.take(ClientGauge("c1", series, 5.0)) == ""
    assert clients.take(ClientGauge("c2", series, 6.0)) == ""
    assert clients._cached() == {series: 11.0}
    await clock.advance(OLD_MS + 1, _nothing)
    assert clients._cached() == {}


@pytest.mark.parametrize(
    "wrong",
    [
        sent([1], -1.0),
        sent([1], float("nan")),
        sent([1 << 60], 1.0),
        sent([1], 1.0, client="c" * 256),
        sent([0] * 9, 1.0),
        ClientGauge("c1", series_of("rocketmq_consumer_cached_bytes", TOPIC, GROUP, ""), -1.0),
        ClientGauge("c1", series_of("rocketmq_consumer_cached_bytes", TOPIC, GROUP, ""), float("inf")),
    ],
)
def test_numbers_that_cannot_be_are_left_out(wrong: ClientHistogram | ClientGauge) -> None:
    clients = meters(ManualClock(START_MS))
    assert clients.take(wrong)
    assert not clients._totals
    assert not clients._last


def test_the_app_has_no_client_meters_by_default(sqlite_url: str) -> None:
    from popserver.config import GivenConfig

    assert App(GivenConfig(database_url=sqlite_url)).client_meters is None
