"""GetChart: protobuf in, the room's own types out."""

from __future__ import annotations

from popproto.v1 import admin_pb2 as wire
from popserver.access import rights
from popserver.charts.flow import Charts
from popserver.charts.rules import ChartKind, Shown
from popserver.model.errors import BadRequest
from popserver.transport import convert, status
from popserver.transport.calls import AnyMethod, Caller, Method


class ChartMethods:
    """The call of operators about charts."""

    def __init__(self, charts: Charts) -> None:
        self._charts = charts
        self.methods: dict[str, AnyMethod] = {"GetChart": Method(self.get_chart, rights.admin)}

    async def get_chart(self, request: wire.GetChartRequest, caller: Caller) -> wire.GetChartResponse:
        """The chart of a group or of a topic."""
        if request.HasField("group") == request.HasField("topic"):
            raise BadRequest("the request must name either a group or a topic")
        kind = ChartKind.GROUP if request.HasField("group") else ChartKind.TOPIC
        name = caller.resource(request.group if kind is ChartKind.GROUP else request.topic)
        chart = await self._charts.chart(kind, name, convert.duration_ms(request.over))
        return wire.GetChartResponse(
            status=status.OK,
            step=convert.duration(chart.level.step_ms),
            points=map(_point, chart.points),
            kept=chart.is_kept,
        )


def _point(shown: Shown) -> wire.ChartPoint:
    age_ms, mean_ms, slow_ms = shown.oldest_age_ms, shown.mean_delay_ms, shown.slow_delay_ms
    return wire.ChartPoint(
        at=convert.timestamp(shown.at_ms),
        stored_rate=shown.stored_rate,
        done_rate=shown.done_rate,
        ready=shown.ready,
        inflight=shown.inflight,
        waiting_retry=shown.waiting_retry,
        oldest_age=None if age_ms is None else convert.duration(age_ms),
        mean_delay=None if mean_ms is None else convert.duration(round(mean_ms)),
        slow_delay=None if slow_ms is None else convert.duration(slow_ms),
    )
