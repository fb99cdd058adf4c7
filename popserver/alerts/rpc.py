"""ListAlerts: protobuf in, the room's own types out."""

from __future__ import annotations

from popproto.v1 import admin_pb2 as wire
from popserver.access import rights
from popserver.alerts.flow import Alerts
from popserver.alerts.rules import Alert
from popserver.transport import status
from popserver.transport.calls import AnyMethod, Caller, Method


class AlertMethods:
    """The call of operators about what needs them."""

    def __init__(self, alerts: Alerts) -> None:
        self._alerts = alerts
        self.methods: dict[str, AnyMethod] = {"ListAlerts": Method(self.list_alerts, rights.admin)}

    async def list_alerts(self, _request: wire.ListAlertsRequest, caller: Caller) -> wire.ListAlertsResponse:
        """What needs a person in the namespace of the call's header, or in all."""
        found, untold = await self._alerts.find(caller.namespace or None), await self._alerts.untold()
        answer = wire.ListAlertsResponse(status=status.OK, alerts=map(_alert, found), has_webhook=untold is not None)
        if untold is not None:
            answer.untold, answer.webhook_failure = untold
        return answer


def _alert(found: Alert) -> wire.Alert:
    return wire.Alert(
        kind=found.kind,
        namespace=found.namespace,
        subject=found.subject,
        sentence=found.sentence,
        detail=found.detail,
        next_step=found.next_step,
        page=found.page,
    )
