"""Metrics that are pushed by OTLP, received by a collector: a gRPC server with OpenTelemetry's own service."""

from __future__ import annotations

import builtins
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as wire
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as service
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from pydantic import ValidationError
from structlog.testing import capture_logs

from popclient import aio
from popserver.app import App
from popserver.config import GivenConfig
from popserver.metrics import otlp
from popserver.metrics.names import COMMON, METRICS
from tests.metrics.test_exported import busy
from tests.support.running_broker import until
from tests.web.conftest import started


class Collector(service.MetricsServiceServicer):
    """Keeps the requests that it gets; refuses them while it is told to."""

    def __init__(self) -> None:
        self.requests: list[wire.ExportMetricsServiceRequest] = []
        self.refuses = False
        self.endpoint = ""

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self.refuses:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no such tenant")
        self.requests.append(request)
        return wire.ExportMetricsServiceResponse()

    def metrics(self) -> dict[str, Metric]:
        """The metrics of all requests, each as it came last."""
        return {
            metric.name: metric
            for request in self.requests
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    server, found = grpc.aio.server(), Collector()
    service.add_MetricsServiceServicer_to_server(found, server)
    found.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield found
    await server.stop(None)


def a_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


async def pushed(app: App) -> str:
    """One push; the reason why it failed."""
    assert app.monitoring.metric_push is not None
    app.monitoring.metric_push._log(failure := await app.monitoring.metric_push._push())
    return failure


async def test_a_collector_gets_the_numbers_of_a_scrape(collector: Collector, database_url: str) -> None:
    async with busy(database_url, otlp_endpoint=collector.endpoint, http="off") as app:
        assert await pushed(app) == ""
        found = collector.metrics()
        [resource] = collector.requests[-1].resource_metrics
        about = {each.key: each.value.string_value for each in resource.resource.attributes}
        assert (about["service.name"], about["service.instance.id"]) == ("popmq", app.endpoint)
    assert found.keys() <= {each.name for each in METRICS}
    [ready] = found["rocketmq_consumer_ready_messages"].gauge.data_points
    labels = {each.key: each.value.string_value for each in ready.attributes if each.key not in COMMON}
    assert ready.as_int == 3
    assert labels == {"topic": "orders", "consumer_group": "billing", "is_retry": "false", "is_system": "false"}
    out = found["rocketmq_messages_out_total"].sum
    assert (out.is_monotonic, out.aggregation_temporality) == (
        True,
        AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE,
    )
    assert [each.as_int for each in out.data_points] == [4]
    sizes = {
        next(each.value.string_value for each in point.attributes if each.key == "message_type"): point
        for point in found["rocketmq_message_size"].histogram.data_points
    }
    assert list(sizes["normal"].bucket_counts) == [6, 0, 0, 0, 0, 0, 0]
    assert (sizes["normal"].count, sizes["normal"].sum) == (6, 600)
    assert not sizes["normal"].HasField("min")
    assert found["rocketmq_storage_size"].unit == "By"


async def test_it_pushes_by_itself_and_in_several_requests(
    collector: Collector, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "POINTS_EACH", 10)
    async with started(sqlite_url, otlp_endpoint=collector.endpoint, otlp_period=1_000):
        await until(lambda: len(collector.requests) > 2)
    for request in collector.requests:
        [scope] = request.resource_metrics[0].scope_metrics
        points = [
            point
            for metric in scope.metrics
            for point in getattr(metric, metric.WhichOneof("data")).data_points  # type: ignore[arg-type]
        ]
        assert 0 < len(points) <= 10


async def test_a_collector_that_refuses_or_is_not_there_is_told_once(collector: Collector, sqlite_url: str) -> None:
    collector.refuses = True
    with capture_logs() as said:
        async with started(sqlite_url, otlp_endpoint=collector.endpoint) as app:
            assert "no such tenant" in await pushed(app)
            assert "no such tenant" in await pushed(app)
            async with aio.Producer(app.endpoint) as producer:
                await producer.send("orders", "one")
            collector.refuses = False
            assert await pushed(app) == ""
    events = [each["event"] for each in said]
    assert len([each for each in events if each.startswith("metrics cannot be pushed")]) == 1
    assert events.count("metrics are pushed again") == 1


async def test_nobody_at_the_address(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "TIMEOUT_S", 0.2)
    async with started(sqlite_url, otlp_endpoint=f"http://127.0.0.1:{a_free_port()}") as app:
        assert "UNAVAILABLE" in (reason := await pushed(app)) or "DEADLINE" in reason
        async with aio.Producer(app.endpoint) as producer:
            await producer.send("orders", "one")


async def test_without_the_extra_the_server_runs_and_says_so(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *more: Any, **named: Any) -> Any:
        if name == "popserver.metrics.otlp":
            raise ImportError("No module named 'opentelemetry'")
        return real(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with capture_logs() as said:
        async with started(sqlite_url, otlp_endpoint="http://127.0.0.1:4317") as app:
            assert app.monitoring.metric_push is None
    [line] = [each for each in said if "metrics are not pushed" in each["event"]]
    assert "pip install 'popmq[otlp]'" in line["event"]


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4317", "ftp://127.0.0.1:4317", "http://127.0.0.1", "http://:99999"])
def test_an_address_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(ValidationError, match="HOST:PORT"):
        GivenConfig(otlp_endpoint=endpoint)
