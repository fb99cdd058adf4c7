"""Calls of consumers about messages they hold: ack, change the invisible duration, forward to the dead-letter topic."""

from __future__ import annotations

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.access import rights
from popserver.model.errors import BadRequest, IllegalInvisibleTime
from popserver.model.names import CONTROL
from popserver.settling.flow import Settling
from popserver.transport import convert, status
from popserver.transport.calls import AnyMethod, Caller, Method
from popserver.transport.limits import CallLimits

REASON_HEADER = "popmq-reason-bin"
REASON_LENGTH_MAX = 256  # characters; a longer reason of a failure is cut, not refused


class SettleMethods:
    """What simple and push consumers do with messages that they hold."""

    def __init__(self, settling: Settling, limits: CallLimits) -> None:
        self._settling = settling
        self._limits = limits
        self.methods: dict[str, AnyMethod] = {
            "AckMessage": Method(self.ack_message, rights.consume),
            "ForwardMessageToDeadLetterQueue": Method(self.forward_to_dead_letter_queue, rights.consume),
            "ChangeInvisibleDuration": Method(
                self.change_invisible_duration, rights.consume, refuse=refuse_to_change, echoes=True
            ),
        }

    async def ack_message(self, request: wire.AckMessageRequest, caller: Caller) -> wire.AckMessageResponse:
        """Each entry has its outcome; most clients read only the common status (protocol 1.8)."""
        acked = request.entries
        if not acked:
            raise BadRequest("the request has no entries; send at least one")
        if len(acked) > self._limits.ack_entries_max:
            raise BadRequest(
                f"the request has {len(acked)} entries, at most {self._limits.ack_entries_max} are allowed; split it"
            )
        outcomes = await self._settling.ack(
            caller.resource(request.group),
            caller.resource(request.topic),
            [entry.receipt_handle for entry in acked],
            [entry.message_id for entry in acked],
        )
        answer, refused = wire.AckMessageResponse(), False
        new_entry = answer.entries.add  # an entry that is made outside of the answer would be copied into it
        for each, outcome in zip(acked, outcomes, strict=True):
            entry = new_entry()
            entry.CopyFrom(_ACKED)
            entry.message_id = each.message_id
            entry.receipt_handle = each.receipt_handle
            if outcome is not None:
                refused = True
                entry.status.CopyFrom(status.of(outcome))
        answer.status.CopyFrom(status.combined([entry.status for entry in answer.entries]) if refused else status.OK)
        return answer

    async def change_invisible_duration(
        self, request: wire.ChangeInvisibleDurationRequest, caller: Caller
    ) -> wire.ChangeInvisibleDurationResponse:
        """Change the hold's end to 0 s to 12 h from now; the answer has the new handle.

        `suspend` with a duration of 0 gives the message back unused; with a longer one it stops a lite topic.
        """
        duration_ms = convert.duration_ms(request.invisible_duration)
        check_change(duration_ms, self._limits)
        handle = await self._settling.change_invisible(
            caller.resource(request.group),
            caller.resource(request.topic),
            request.receipt_handle,
            duration_ms,
            give_back=request.suspend and duration_ms == 0,
            suspend=request.suspend,
            message_id=request.message_id,
            reason=reason_of(caller),
        )
        return wire.ChangeInvisibleDurationResponse(status=status.OK, receipt_handle=handle)

    async def forward_to_dead_letter_queue(
        self, request: wire.ForwardMessageToDeadLetterQueueRequest, caller: Caller
    ) -> wire.ForwardMessageToDeadLetterQueueResponse:
        """Give a message up. Clients repeat this call until it is OK, so a dead letter or committed message is OK."""
        await self._settling.forward(
            caller.resource(request.group),
            caller.resource(request.topic),
            request.receipt_handle,
            request.message_id,
            reason_of(caller),
        )
        return wire.ForwardMessageToDeadLetterQueueResponse(status=status.OK)


def refuse_to_change(
    request: wire.ChangeInvisibleDurationRequest | BadRequest | None, refused: pb.Status
) -> wire.ChangeInvisibleDurationResponse:
    """A refusal with the handle of the request, because clients copy the handle without a check (protocol 1.9)."""
    handle = "" if request is None or isinstance(request, BadRequest) else request.receipt_handle
    return wire.ChangeInvisibleDurationResponse(status=refused, receipt_handle=handle)


def check_change(duration_ms: int, limits: CallLimits) -> None:
    """Raise `IllegalInvisibleTime` if a hold may not last this long from now on."""
    if duration_ms < 0:
        raise IllegalInvisibleTime(f"the invisibleTime is too small: {duration_ms} ms, at least 0 ms are allowed")
    if duration_ms > limits.invisible_ms_max:
        raise too_large(duration_ms, limits)


def too_large(invisible_ms: int, limits: CallLimits) -> IllegalInvisibleTime:
    """The refusal of an invisible duration."""
    return IllegalInvisibleTime(
        f"the invisibleTime is too large: {invisible_ms} ms, at most {limits.invisible_ms_max} ms are allowed"
    )


def reason_of(caller: Caller) -> str:
    """Why an attempt failed, as its consumer reports (protocol 1.6): one line, may be empty."""
    reason = (caller.binary(REASON_HEADER) or b"").decode(errors="replace")
    return CONTROL.sub(" ", reason).strip()[:REASON_LENGTH_MAX]


# Entries are copies of this one: a copy costs half of filling in the status.
_ACKED = wire.AckMessageResultEntry(status=status.OK)
