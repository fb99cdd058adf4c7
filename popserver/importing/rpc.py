"""ImportMessages of popmq.v1.Admin."""

from __future__ import annotations

from popproto.v1 import admin_pb2 as wire
from popserver.access import rights
from popserver.engine.clock import Clock
from popserver.importing.flow import Death, Given, Importing
from popserver.model.errors import PopError
from popserver.model.names import Resource
from popserver.producing.sent import sent_message
from popserver.transport import convert, status
from popserver.transport.calls import AnyMethod, Caller, Method
from popserver.transport.limits import CallLimits


class ImportMethods:
    """One method per RPC, in the proto's order."""

    def __init__(self, importing: Importing, clock: Clock, limits: CallLimits) -> None:
        self._importing = importing
        self._clock = clock
        self.methods: dict[str, AnyMethod] = {
            "ImportMessages": Method(self.import_messages, rights.admin, bytes_max=limits.request_bytes_max)
        }

    async def import_messages(self, request: wire.ImportMessagesRequest, caller: Caller) -> wire.ImportMessagesResponse:
        topic = caller.resource(request.topic)
        given = [self._given(each, topic) for each in request.messages]
        outcomes = await self._importing.run(caller.resource(request.group), topic, given)
        return wire.ImportMessagesResponse(status=status.OK, results=map(_result, outcomes))

    def _given(self, each: wire.ImportedMessage, topic: Resource) -> Given | PopError:
        now_ms, calendar_ms, _ = self._clock.times()
        try:
            message = sent_message(each.message, topic, now_ms, calendar_ms)
            return Given(message, each.delivery_attempt, _death(each))
        except PopError as refusal:
            return refusal


def _death(each: wire.ImportedMessage) -> Death | None:
    if not each.HasField("death"):
        return None
    has_time = each.death.HasField("dead_at")
    return Death(each.death.reason, convert.time_ms(each.death.dead_at, "dead_at") if has_time else 0)


def _result(outcome: bool | PopError) -> wire.ImportResult:
    if isinstance(outcome, PopError):
        return wire.ImportResult(status=status.of(outcome))
    return wire.ImportResult(status=status.OK, is_repeated=outcome)
