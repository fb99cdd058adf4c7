"""Receives the metrics of clients: OpenTelemetry's service for metrics, on the port for clients.

Official clients send them there each minute if the server's settings say so. Needs the extra `otlp`, which has the
messages of the service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as wire
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE, Metric

from popport.addresses import network_of
from popserver.access.gate import ClientGate
from popserver.catalog.flow import Catalog
from popserver.client_metrics.numbers import (
    CACHED,
    LIMITS_MS,
    ClientGauge,
    ClientHistogram,
    ClientMeters,
    Series,
    Unusable,
    needs_group,
    series_of,
)
from popserver.model.acl import Action, ResourceKind, Right
from popserver.model.errors import (
    BadRequest,
    Forbidden,
    IllegalConsumerGroup,
    IllegalTopic,
    PopError,
)
from popserver.model.names import Resource
from popserver.transport import status
from popserver.transport.call import Call, Encodable, Route, Service, encode
from popserver.transport.calls import Caller, RequiredRights
from popserver.transport.incoming import Incoming, reader

NAME = wire.DESCRIPTOR.services_by_name["MetricsService"].full_name
BYTES_MAX = 256 * 1024
PARTS_MAX = 16  # resources, or scopes of one of them: clients send one of each
METRICS_MAX = 64
POINTS_MAX = 2_000  # of a request
ATTRIBUTES_MAX = 16  # of a point
MISSING_MAX = 8  # topics and groups of a request that do not exist; the store is not asked for more names
_AT_ONCE = 100  # points, then other clients have their turn

_read = reader(wire.ExportMetricsServiceRequest, BYTES_MAX)


class _Labels(NamedTuple):
    client_id: str
    series: Series


class Fault(NamedTuple):
    """Why the numbers of a series are left out."""

    why: Unusable
    sentence: str


class ClientMetricMethods:
    """The only call of the service. A refusal ends it with a gRPC status, because its answer has no status."""

    def __init__(
        self, meters: ClientMeters, catalog: Catalog, incoming: Incoming, gate: ClientGate, *, must_sign: bool
    ) -> None:
        self._meters = meters
        self._catalog = catalog
        self._incoming = incoming
        self._gate = gate
        self._must_sign = must_sign

    @property
    def service(self) -> Service:
        return Service(NAME, {"Export": Route(self._export, encode, streams=False)})

    async def _export(self, call: Call) -> Encodable | None:
        try:
            caller = Caller(call)
            # Some clients name themselves only inside their metrics.
            if self._must_sign or caller.client_id:
                self._gate.enter("Export", caller, anonymous=False)
            arrived = await self._incoming.receive(call, _read, BYTES_MAX, is_anonymous=not caller.user)
            try:
                if arrived.refusal is not None:
                    raise arrived.refusal
                request = arrived.request
                assert request is not None
                assert not isinstance(request, BadRequest)
                # At once, so that requests with many empty parts are never in memory together.
                check(request)
                return await self._take(request, caller)
            finally:
                arrived.budget.give_back(arrived.size)
        except PopError as refusal:
            call.end(status.end_of_stream(refusal))
            return None

    async def _take(
        self, request: wire.ExportMetricsServiceRequest, caller: Caller
    ) -> wire.ExportMetricsServiceResponse:
        """Take the points, and say how many were left out, with the last reason."""
        await self._forget_deleted()
        points = list(_points(request, caller))
        faults = await _Judge(self._catalog, caller).faults(point.series for point in points)
        answer, reason = wire.ExportMetricsServiceResponse(), ""
        for number, point in enumerate(points):
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
            fault = faults[point.series]
            refused = self._meters.leave_out(*fault) if fault else self._meters.take(point, _holder(caller))
            if refused:
                answer.partial_success.rejected_data_points += 1
                reason = refused
        if reason:
            answer.partial_success.error_message = reason
        return answer

    async def _forget_deleted(self) -> None:
        names = _Names(self._catalog)
        if left := self._meters.sweep():
            self._meters.forget({series for series in left if await names.missing(series)})


class _Judge:
    """Decides which series a caller may send: those of topics and groups that exist, and that it may use. A producer
    needs PUB on the topic; a consumer needs SUB on the topic and the group."""

    def __init__(self, catalog: Catalog, caller: Caller) -> None:
        self._names = _Names(catalog, missing_max=MISSING_MAX)
        self._caller = caller

    async def faults(self, wanted: Iterable[Series]) -> dict[Series, Fault | None]:
        """What is wrong with each series; None if nothing is. Raises `Unauthorized`, `StoreUnavailable`."""
        found: dict[Series, Fault | None] = {}
        for series in wanted:
            if series not in found:
                found[series] = await self._fault(series)
                if not len(found) % _AT_ONCE:
                    await asyncio.sleep(0)
        return found

    async def _fault(self, series: Series) -> Fault | None:
        try:
            self._caller.require(_needs(series))
        except Forbidden as refusal:
            return Fault(Unusable.FORBIDDEN, refusal.sentence)
        missing = await self._names.missing(series)
        return Fault(Unusable.UNKNOWN, missing) if missing else None


class _Names:
    """Looks topics and groups up. It asks the store until `missing_max` names do not exist; then for none any more."""

    def __init__(self, catalog: Catalog, missing_max: int | None = None) -> None:
        self._catalog = catalog
        self._missing_max = missing_max
        self._missing = dict[tuple[str, Resource], str]()

    async def missing(self, series: Series) -> str:
        """What does not exist, in one sentence; empty if all exists."""
        sentence = await self._look_up("topic", series.topic, self._catalog.known_topic)
        if not sentence and needs_group(series):
            sentence = await self._look_up("consumer group", series.group, self._catalog.known_group)
        return sentence

    async def _look_up(self, kind: str, name: Resource, find: Callable[[Resource], Awaitable[object | None]]) -> str:
        if (kind, name) in self._missing:
            return self._missing[kind, name]
        if len(self._missing) == self._missing_max:
            return f"more than {self._missing_max} topics and groups do not exist"
        try:
            if await find(name) is not None:
                return ""
            sentence = f"there is no {kind} '{name}'"
        except (IllegalTopic, IllegalConsumerGroup) as refusal:
            sentence = refusal.sentence
        self._missing[kind, name] = sentence
        return sentence


def _needs(series: Series) -> RequiredRights:
    if not needs_group(series):
        return [(Right(Action.PUB, ResourceKind.TOPIC, series.topic),)]
    return [
        (Right(Action.SUB, ResourceKind.TOPIC, series.topic),),
        (Right(Action.SUB, ResourceKind.GROUP, series.group),),
    ]


def _holder(caller: Caller) -> str:
    """In whose share the numbers are."""
    return f"user '{caller.user}'" if caller.user else f"address {network_of(caller.peer.rpartition(':')[0])}"


def check(request: wire.ExportMetricsServiceRequest) -> None:
    """Raise `BadRequest` for a request with more parts than a client sends."""
    _limit("resources", len(request.resource_metrics), PARTS_MAX)
    points = 0
    for resource in request.resource_metrics:
        _limit("scopes", len(resource.scope_metrics), PARTS_MAX)
        for scope in resource.scope_metrics:
            _limit("metrics", len(scope.metrics), METRICS_MAX)
            points += sum(len(each.histogram.data_points) + len(each.gauge.data_points) for each in scope.metrics)
    _limit("points", points, POINTS_MAX)


def _limit(what: str, count: int, most: int) -> None:
    if count > most:
        raise BadRequest(f"a request with {count} {what}; at most {most} are allowed, send several requests")


def _points(request: wire.ExportMetricsServiceRequest, caller: Caller) -> Iterator[ClientHistogram | ClientGauge]:
    """The points of the metrics that the server knows; others are not for it."""
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                yield from _points_of(metric, caller)


def _points_of(metric: Metric, caller: Caller) -> Iterator[ClientHistogram | ClientGauge]:
    if metric.name in CACHED:
        for gauge in metric.gauge.data_points:
            value = gauge.as_double if gauge.HasField("as_double") else float(gauge.as_int)
            yield ClientGauge(*_labels(metric.name, gauge.attributes, caller), value)
    elif metric.name in LIMITS_MS:
        is_total = metric.histogram.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
        for point in metric.histogram.data_points:
            yield ClientHistogram(
                *_labels(metric.name, point.attributes, caller),
                point.explicit_bounds,
                point.bucket_counts,
                point.sum,
                point.start_time_unix_nano,
                point.time_unix_nano,
                is_total,
            )


def _labels(metric: str, attributes: Sequence[KeyValue], caller: Caller) -> _Labels:
    found = {each.key: each.value.string_value for each in attributes[:ATTRIBUTES_MAX]}
    client_id = caller.client_id or found.get("client_id", "")
    topic, group = (Resource(caller.namespace, found.get(name, "")) for name in ("topic", "consumer_group"))
    return _Labels(client_id, series_of(metric, topic, group, found.get("invocation_status", "")))
