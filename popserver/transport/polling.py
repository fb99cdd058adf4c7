"""How long a receive or a pull may wait for messages."""

from __future__ import annotations

from popproto.v1 import legacy_pb2
from popproto.v2 import service_pb2 as wire
from popserver.model.errors import BadRequest, IllegalPollingTime
from popserver.transport import convert
from popserver.transport.calls import Caller
from popserver.transport.limits import CallLimits

# Older clients do not know ILLEGAL_POLLING_TIME. Versions are compared as text, as RocketMQ does (protocol 1.7).
_KNOWS_ILLEGAL_POLLING_TIME = "5.0.3"
# Half of the timeout of an ordinary call: subtracted if a receive gives no polling time (protocol 1.7).
_REQUEST_TIMEOUT_HALF_MS = 1_500


def poll_ms_of(
    request: wire.ReceiveMessageRequest | wire.PullMessageRequest | legacy_pb2.PullBatchRequest,
    caller: Caller,
    limits: CallLimits,
    open_polls: int = 0,
) -> int:
    """How long a receive or a pull may wait, in ms (requirement A12, protocol 1.7).

    The request's polling time, within the limits; without one, what is left until its deadline. The poll ends before
    the deadline, by a margin that grows with the number of open polls, up to half of the remaining time. Raises
    `IllegalPollingTime` (`BadRequest` for old clients) if the deadline leaves less than the shortest poll.
    """
    remaining_ms = caller.call.remaining_ms()
    if request.HasField("long_polling_timeout"):
        wanted_ms = convert.duration_ms(request.long_polling_timeout)
    else:
        wanted_ms = limits.poll_ms_max if remaining_ms is None else remaining_ms - _REQUEST_TIMEOUT_HALF_MS
    poll_ms = min(max(wanted_ms, limits.poll_ms_min), limits.poll_ms_max)
    if remaining_ms is None:
        return poll_ms
    if poll_ms > remaining_ms < limits.poll_ms_min:
        refusal = IllegalPollingTime
        if caller.header("x-mq-client-version") < _KNOWS_ILLEGAL_POLLING_TIME:
            refusal = BadRequest  # type: ignore[assignment]
        raise refusal(
            f"the call's deadline leaves {remaining_ms} ms, but the shortest poll takes {limits.poll_ms_min} ms;"
            " use a longer deadline"
        )
    shared_ms = min(open_polls * limits.poll_margin_us_each // 1_000, remaining_ms // 2)
    return max(0, min(poll_ms, remaining_ms - limits.poll_margin_ms - shared_ms))
