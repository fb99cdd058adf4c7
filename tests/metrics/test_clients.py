"""Metrics of clients: sent by OpenTelemetry's own exporter to the port for clients, and added up for a scrape."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
from popserver.access.users import Users
from popserver.client_metrics.numbers import LIMITS_MS
from popserver.client_metrics.rpc import MISSING_MAX
from popserver.clients.settings import ask_for_metrics
from popserver.model.acl import Action, Effect, ResourceKind
from popserver.model.group import NewGroup
from popserver.model.names import Resource
from popserver.model.topic import NewTopic
from tests.metrics.test_exported import Samples, scraped, value
from tests.support.signing import signed
from tests.web.conftest import started

TOPIC, OTHER, GROUP = Resource("", "orders"), Resource("", "parcels"), Resource("", "billing")
SECRET = "correct-horse"
ADMIN: dict[str, Any] = {"auth": True, "admin_access_key": "root", "admin_secret": "a-long-secret-of-the-admin"}


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
    assert value(samples, "popmq_budget_used", budget="client metrics") == 6
    assert not [name for name, _ in samples if name.startswith("something")]


async def export(
    endpoint: str, request: wire.ExportMetricsServiceRequest, headers: dict[str, str] | None = None
) -> wire.ExportMetricsServiceResponse:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        metadata = tuple((headers or {}).items())
        answer: wire.ExportMetricsServiceResponse = await MetricsServiceStub(channel).Export(request, metadata=metadata)
        return answer


def a_request(points: int = 1, *, metric: str = "rocketmq_send_cost_time") -> wire.ExportMetricsServiceRequest:
    request = wire.ExportMetricsServiceRequest()
    histogram = request.resource_metrics.add().scope_metrics.add().metrics.add(name=metric).histogram
    for _ in range(points):
        histogram.data_points.add(explicit_bounds=[1.0], bucket_counts=[1, 1])
    return request


def of_topics(*names: str, group: str = "", status: str = "success") -> wire.ExportMetricsServiceRequest:
    """A send of each topic; with a group, a message of each topic that its listener took."""
    metric = "rocketmq_process_time" if group else "rocketmq_send_cost_time"
    request = a_request(len(names), metric=metric)
    histogram = request.resource_metrics[0].scope_metrics[0].metrics[0].histogram
    for name, point in zip(names, histogram.data_points, strict=True):
        point.explicit_bounds[:] = LIMITS_MS[metric]
        point.bucket_counts[:] = [1, *([0] * len(LIMITS_MS[metric]))]
        point.start_time_unix_nano, point.time_unix_nano = 1, 2
        for key, text in (("topic", name), ("consumer_group", group), ("invocation_status", status)):
            point.attributes.add(key=key).value.string_value = text
    return request


async def test_requests_that_no_client_sends_are_refused(sqlite_url: str) -> None:
    async with started(sqlite_url, client_metrics=True) as app:
        await app.broker.catalog.create_topic(NewTopic(TOPIC, 1))
        wrong = of_topics("orders")
        wrong.resource_metrics[0].scope_metrics[0].metrics[0].histogram.data_points[0].explicit_bounds[:] = [1.0]
        answer = await export(app.endpoint, wrong)
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
    async with started(sqlite_url, client_metrics=True, **ADMIN) as app:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await export(app.endpoint, a_request())
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_without_the_extra_the_server_runs_and_says_so(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "popserver.client_metrics.rpc", None)
    monkeypatch.delattr("popserver.client_metrics.rpc", raising=False)
    with capture_logs() as said:
        async with started(sqlite_url, client_metrics=True) as app:
            assert app.monitoring.client_meters is None
    assert [each for each in said if "pip install 'popmq[otlp]'" in each["event"]]


def left_out(samples: Samples) -> dict[str, float | None]:
    return {
        why: value(samples, "popmq_client_metrics_left_out_total", reason=why)
        for why in ("unknown", "forbidden", "wrong")
    }


async def test_topics_and_groups_that_do_not_exist_are_left_out(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(database_url, client_metrics=True) as app:
        catalog, asked = app.broker.catalog, list[Resource]()
        await catalog.create_topic(NewTopic(TOPIC, 1))
        find = catalog._find_topic

        async def counted(name: Resource) -> object:
            asked.append(name)
            return await find(name)

        monkeypatch.setattr(catalog, "_find_topic", counted)
        answer = await export(app.endpoint, of_topics("orders", *(f"no-topic-{each}" for each in range(100)), "a b"))
        assert answer.partial_success.rejected_data_points == 101
        assert len(asked) == MISSING_MAX  # whatever callers name, the store is not asked for more
        answer = await export(app.endpoint, of_topics("orders", group="nobody"))
        assert "there is no consumer group 'nobody'" in answer.partial_success.error_message
        samples = await scraped(app)
        assert left_out(samples) == {"unknown": 102, "forbidden": 0, "wrong": 0}
        assert value(samples, "rocketmq_send_cost_time_count", topic="orders") == 1
        assert value(samples, "popmq_budget_used", budget="exported client metrics") == 1


async def test_a_deleted_topic_gives_its_room_back(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with started(database_url, client_metrics=True) as app:
        await app.broker.catalog.create_topic(NewTopic(TOPIC, 1))
        await app.broker.catalog.create_topic(NewTopic(OTHER, 1))
        assert not (await export(app.endpoint, of_topics("orders", "parcels"))).ByteSize()
        await app.broker.catalog.delete_topic(OTHER)
        assert app.monitoring.client_meters is not None
        monkeypatch.setattr(app.monitoring.client_meters, "_swept_ms", 0)  # the last sweep is long ago
        assert not (await export(app.endpoint, of_topics("orders"))).ByteSize()
        samples = await scraped(app)
        assert value(samples, "popmq_budget_used", budget="client metrics") == 1
        assert value(samples, "popmq_budget_used", budget="exported client metrics") == 1


async def test_a_caller_sends_numbers_of_what_it_may_use(database_url: str) -> None:
    async with started(database_url, client_metrics=True, **ADMIN) as app:
        for name in (TOPIC, OTHER):
            await app.broker.catalog.create_topic(NewTopic(name, 1))
        await app.broker.catalog.create_group(NewGroup(GROUP))
        users = Users(app.broker.engine.writer, app.broker.engine.reader, app.access)
        await users.add("alice", SECRET, is_admin=False)
        pub, topics = (Action.PUB,), ResourceKind.TOPIC
        await users.add_policy("alice", Effect.ALLOW, pub, topics, Resource("", "orders"))
        alice = signed("alice", SECRET) | {"x-mq-client-id": "c1"}
        answer = await export(app.endpoint, of_topics("orders", "parcels", "unknown"), alice)
        assert answer.partial_success.rejected_data_points == 2
        assert "may not PUB topic 'unknown'" in answer.partial_success.error_message
        answer = await export(app.endpoint, of_topics("orders", group="billing"), alice)
        assert "may not SUB topic 'orders'" in answer.partial_success.error_message
        samples = await scraped(app)
        assert left_out(samples) == {"unknown": 0, "forbidden": 3, "wrong": 0}
        assert value(samples, "rocketmq_send_cost_time_count") == 1
        admin = signed("root", ADMIN["admin_secret"]) | {"x-mq-client-id": "c2"}
        assert not (await export(app.endpoint, of_topics("orders", "parcels", group="billing"), admin)).ByteSize()


async def test_what_clients_send_takes_no_room_of_the_servers_own_numbers(sqlite_url: str) -> None:
    async with started(sqlite_url, client_metrics=True, max_metric_series=500) as app:
        names = [f"t{each:03}" for each in range(150)]
        for name in names:
            await app.broker.catalog.create_topic(NewTopic(Resource("", name), 1))
        own = value(await scraped(app), "popmq_metrics_left_out", kind="topics")
        answer = await export(app.endpoint, of_topics(*names))
        assert answer.partial_success.rejected_data_points == 148  # half of a tenth of the samples is for one address
        assert "--max-metric-series" in answer.partial_success.error_message
        samples = await scraped(app)
        assert value(samples, "popmq_metrics_left_out", kind="topics") == own
        assert value(samples, "popmq_budget_limit", budget="exported client metrics") == 5
        assert value(samples, "popmq_metrics_left_out", kind="clients") == 0


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


async def test_a_server_has_no_client_meters_by_default(sqlite_url: str) -> None:
    async with started(sqlite_url) as app:
        assert app.monitoring.client_meters is None
