"""Lite topics (I2): a message of one reaches only clients that subscribe to it; its order is a message group's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from proof.history.events import LiteReceive, LiteSync
from tests.support.checker import Final, History, Outcome, Violation

Client = tuple[str, str]  # its group and its name


# If the outcome of a call is unknown, the server may carry it out until so many ms after the client has given it up.
LATE_MS = 5_000


def only_subscribers(history: History, final: Final) -> Iterator[Violation]:
    """Whoever gets a message of a lite topic may have been subscribed to it while it received."""
    lite_topics = {row.message_id: row.message_group for row in final.stored}
    syncs = _by_client(history)
    for call in history.calls:
        if not isinstance(call, LiteReceive):
            continue
        known = _may_have(syncs[call.group, call.client], call)
        others = [each for (group, client), each in syncs.items() if group == call.group and client != call.client]
        lost = _taken(syncs[call.group, call.client], [each for those in others for each in those], call)
        for each in call.deliveries:
            lite_topic = lite_topics.get(each.message_id, "")
            if lite_topic and (lite_topic not in known or lite_topic in lost):
                yield Violation(
                    "I2", f"{call.client} of {call.group} got {each.message_id} of {lite_topic}, which it did not want"
                )


def _may_have(syncs: list[LiteSync], received: LiteReceive) -> set[str]:
    """What the client may have been subscribed to at some time of the receive. Its calls come one after the other."""
    had: set[str] = set()
    for call in syncs:
        if call.invoked_ms >= received.completed_ms or not call.may_have_happened:
            continue
        if call.adds:
            had |= {*call.names}
        elif call.outcome is Outcome.OK and call.completed_ms <= received.invoked_ms:
            had -= {*call.names}
    return had


def _taken(own: list[LiteSync], others: list[LiteSync], received: LiteReceive) -> set[str]:
    """What other clients took before the receive, after the client had added it for the last time."""
    taken: set[str] = set()
    for other in others:
        if other.takes and other.outcome is Outcome.OK and other.completed_ms <= received.invoked_ms:
            again = (
                call.names
                for call in own
                if call.adds
                and call.may_have_happened
                and call.invoked_ms < received.completed_ms
                and call.completed_ms + (0 if call.outcome is Outcome.OK else LATE_MS) > other.invoked_ms
            )
            taken |= {*other.names}.difference(*again)
    return taken


def _by_client(history: History) -> dict[Client, list[LiteSync]]:
    found: dict[Client, list[LiteSync]] = defaultdict(list)
    for call in history.calls:
        if isinstance(call, LiteSync):
            found[call.group, call.client].append(call)
    for calls in found.values():
        calls.sort(key=lambda each: each.invoked_ms)
    return found
