"""Pushes the metrics of a server to a collector, by OTLP over gRPC: the same numbers that a scrape has.

Needs the extra `otlp`. A collector that does not answer costs a line in the log, and nothing else: a push waits in a
thread, one runs at a time, and the numbers of one that failed are in the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import structlog
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import export as otel
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric as Family

from popserver.engine.clock import Clock
from popserver.metrics.exporter import Exporter
from popserver.metrics.names import COMMON, METRICS, Kind, Metric, Scope

POINTS_EACH = 5_000  # of a request, so that it stays below the 4 MiB that a gRPC server takes
TIMEOUT_S = 10.0  # of a request, with its repetitions
NS_PER_MS = 1_000_000

_UNITS = {"milliseconds": "ms", "seconds": "s", "bytes": "By"}
_BY_FAMILY = {each.name.removesuffix("_total"): each for each in METRICS}
_CUMULATIVE = otel.AggregationTemporality.CUMULATIVE

log = structlog.get_logger("popserver.metrics")


class Instance(NamedTuple):
    """What the numbers are of: the address and the version of the server, and when it started."""

    node_id: str
    version: str
    started_at_ms: int


class MetricPush:
    """Pushes all metrics at once, and then after each period. Make it inside the running event loop."""

    def __init__(self, exporter: Exporter, clock: Clock, endpoint: str, period_s: float, source: Instance) -> None:
        self._exporter = exporter
        self._clock = clock
        self._endpoint = endpoint
        self._period_s = period_s
        self._source = source
        self._reasons = _Reasons(endpoint)
        self._collector = OTLPMetricExporter(endpoint=endpoint, timeout=TIMEOUT_S)
        self._is_failing = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """End the push that runs."""
        self._task.cancel()
        self._collector.shutdown()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._reasons.close()

    async def _run(self) -> None:
        while True:
            self._log(await self._push())
            await asyncio.sleep(self._period_s)

    async def _push(self) -> str:
        """Push once. Returns why that failed; empty if it did not."""
        try:
            families, now_ms = await self._exporter.families(), self._clock.calendar_ms()
            return await asyncio.to_thread(self._send, families, now_ms)
        except Exception as error:  # noqa: BLE001 - whatever the library does, the server goes on
            return repr(error)

    def _send(self, families: Sequence[Family], now_ms: int) -> str:
        for metrics in batches(families, self._source.started_at_ms * NS_PER_MS, now_ms * NS_PER_MS):
            if self._collector.export(data_of(metrics, self._source)) is not otel.MetricExportResult.SUCCESS:
                return self._reasons.last or "the collector refused the metrics"
        return ""

    def _log(self, failure: str) -> None:
        """Log when pushing begins to fail, and when it works again."""
        if failure and not self._is_failing:
            log.warning(
                "metrics cannot be pushed; everything else works, and the next push has these numbers too",
                endpoint=self._endpoint,
                reason=failure,
                next_push_after_s=self._period_s,
            )
        elif self._is_failing and not failure:
            log.info("metrics are pushed again", endpoint=self._endpoint)
        self._is_failing = bool(failure)


class _Reasons(logging.Filter):
    """Keeps the library's last log line about this collector: it is the only source of why a push failed."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self.last = ""
        self._address = endpoint.partition("://")[2]
        self._logger = logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter")
        self._logger.filters.insert(0, self)  # before the library's own, which drops repeated lines

    def filter(self, record: logging.LogRecord) -> bool:
        line = record.getMessage()
        if self._address not in line:
            return True
        self.last = line
        return False

    def close(self) -> None:
        self._logger.removeFilter(self)


def batches(families: Iterable[Family], start_ns: int, now_ns: int) -> Iterator[list[otel.Metric]]:
    """The metrics in OTLP's form, at most `POINTS_EACH` points at a time. Pure."""
    found: list[otel.Metric] = []
    capacity = POINTS_EACH
    for family in families:
        metric = _BY_FAMILY[family.name]
        points = _points(metric, family, 0 if metric.scope is Scope.STORE else start_ns, now_ns)
        while points:
            found.append(_metric(metric, points[:capacity]))
            points, capacity = points[capacity:], capacity - len(points[:capacity])
            if not capacity:
                yield found
                found, capacity = [], POINTS_EACH
    if found:
        yield found


def data_of(metrics: Sequence[otel.Metric], source: Instance) -> otel.MetricsData:
    """A request with these metrics."""
    resource = Resource(
        {"service.name": "popmq", "service.instance.id": source.node_id, "service.version": source.version}
    )
    scope = otel.ScopeMetrics(InstrumentationScope("popmq", source.version), metrics, "")
    return otel.MetricsData([otel.ResourceMetrics(resource, [scope], "")])


def _metric(metric: Metric, points: list[Any]) -> otel.Metric:
    data: otel.Sum | otel.Gauge | otel.Histogram
    if metric.kind is Kind.COUNTER:
        data = otel.Sum(points, _CUMULATIVE, is_monotonic=True)
    elif metric.kind is Kind.GAUGE:
        data = otel.Gauge(points)
    else:
        data = otel.Histogram(points, _CUMULATIVE)
    return otel.Metric(metric.name, metric.help, _UNITS.get(metric.unit, ""), data)


def _points(metric: Metric, family: Family, start_ns: int, now_ns: int) -> list[Any]:
    if metric.kind is not Kind.HISTOGRAM:
        began_ns = start_ns if metric.kind is Kind.COUNTER else 0
        return [otel.NumberDataPoint(each.labels, began_ns, now_ns, each.value) for each in family.samples]
    by_labels: dict[tuple[str, ...], _Buckets] = defaultdict(_Buckets)
    names = (*COMMON, *metric.labels)
    for sample in family.samples:
        found = by_labels[tuple(sample.labels[name] for name in names)]
        if sample.name.endswith("_bucket"):
            found.add(sample.labels["le"], int(sample.value))
        elif sample.name.endswith("_sum"):
            found.total = sample.value
    return [each.point(dict(zip(names, values, strict=True)), start_ns, now_ns) for values, each in by_labels.items()]


class _Buckets:
    """A histogram while its samples are read: Prometheus adds up the counts of smaller buckets, OTLP does not."""

    def __init__(self) -> None:
        self.total = 0.0
        self._limits: list[float] = []
        self._counts: list[int] = []
        self._below = 0

    def add(self, limit: str, at_most: int) -> None:
        if limit != "+Inf":
            self._limits.append(float(limit))
        self._counts.append(at_most - self._below)
        self._below = at_most

    def point(self, labels: dict[str, str], start_ns: int, now_ns: int) -> otel.HistogramDataPoint:
        unknown: Any = None  # the smallest and the largest value, which a histogram of Prometheus does not have
        return otel.HistogramDataPoint(
            labels, start_ns, now_ns, self._below, self.total, self._counts, self._limits, unknown, unknown
        )
