"""Push consumers: what they get is held as long as they show life (protocol 5.1)."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections import defaultdict

from popserver.model.retry import CLIENT_LAPSE_MS, PUSH_HOLD_MS_MAX
from proof.history.events import Gone, PushReceive, SignOfLife
from tests.support.checker import Call, History, Outcome, Receive


def as_holds(history: History) -> History:
    """The same history with a plain receive for each push receive: held as long as its client surely was there."""
    lives: dict[str, list[Call]] = defaultdict(list)
    for call in sorted(history.calls, key=lambda each: each.completed_ms):
        if isinstance(call, SignOfLife | Gone | PushReceive) and call.outcome is not Outcome.UNKNOWN:
            lives[call.client].append(call)
    if not lives:
        return history
    ends = {client: [call.completed_ms for call in calls] for client, calls in lives.items()}
    plain = History()
    for call in history.calls:
        if isinstance(call, PushReceive):
            calls = lives[call.client]
            at = bisect_right(ends[call.client], call.completed_ms)
            meanwhile = calls[bisect_right(ends[call.client], call.invoked_ms) : at]
            held_ms = _there_until_ms(call, meanwhile, calls[at:]) - call.invoked_ms
            plain.add(_as_receive(call, min(held_ms, PUSH_HOLD_MS_MAX)))
        elif not isinstance(call, SignOfLife | Gone):
            plain.add(call)
    return plain


def _there_until_ms(received: PushReceive, meanwhile: list[Call], later: list[Call]) -> float:
    """Until when the server cannot have taken the client for gone. `meanwhile`: while the receive waited."""
    if any(isinstance(call, Gone) for call in meanwhile):
        return received.invoked_ms  # perhaps before the message came
    until_ms = received.completed_ms + CLIENT_LAPSE_MS
    for call in later:
        if call.invoked_ms > until_ms:
            break
        if isinstance(call, Gone):
            return call.invoked_ms
        until_ms = call.completed_ms + CLIENT_LAPSE_MS
    return until_ms


def _as_receive(call: PushReceive, invisible_ms: float) -> Receive:
    fields = {each.name: getattr(call, each.name) for each in dataclasses.fields(Receive)}
    return Receive(**fields | {"invisible_ms": invisible_ms})
