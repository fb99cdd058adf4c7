"""The law of a delivery: one message's life in one consumer group.

Everything that may happen stands in `TRANSITIONS` and nowhere else. An event names its destination: each has exactly
one target, whatever state it starts from. Where there is a choice (retry or dead letter?), pure code decides *which
event happened* (`domain.retry`); nothing but this table decides the state. The SQL guards, the CHECK constraints, the
grid test and the diagram in docs/lifecycle.md are read from it.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """The five states of a delivery (requirement L1); a simple consumer never sees WAITING_RETRY (requirement L2)."""

    READY = "READY"
    INFLIGHT = "INFLIGHT"
    WAITING_RETRY = "WAITING_RETRY"
    COMMIT = "COMMIT"
    DLQ = "DLQ"


class Event(StrEnum):
    """What can happen to a delivery."""

    RECEIVE = "RECEIVE"  # a consumer takes it: a new hold, a new receipt handle, attempt + 1
    ACK = "ACK"  # its holder is done with it
    PROVISIONAL_ACK = "PROVISIONAL_ACK"  # its holder is done with it, but not with one before it in its message group
    SETTLE = "SETTLE"  # everything before it in its message group has ended: its provisional ack counts
    CHANGE_INVISIBLE = "CHANGE_INVISIBLE"  # its holder extends or shortens the hold: a new receipt handle
    RELEASE = "RELEASE"  # the hold's time is over (simple consumer), or its holder is gone
    GIVE_BACK = "GIVE_BACK"  # its holder returns it unused: the attempt does not count
    RETRY = "RETRY"  # a push consumer failed or its hold ended, attempts remain
    BACKOFF_ELAPSED = "BACKOFF_ELAPSED"  # the interval before the retry is over
    EXHAUST = "EXHAUST"  # it failed and no attempt remains
    FORWARD_TO_DLQ = "FORWARD_TO_DLQ"  # its holder gives it up
    REDRIVE = "REDRIVE"  # an operator sends a dead letter back
    RESET = "RESET"  # an operator moves the group's progress: a hold is over, what was done is to be done again
    SKIP = "SKIP"  # an operator passes it over


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.READY, Event.RECEIVE): State.INFLIGHT,
    (State.READY, Event.SETTLE): State.COMMIT,
    (State.READY, Event.SKIP): State.COMMIT,
    (State.INFLIGHT, Event.ACK): State.COMMIT,
    (State.INFLIGHT, Event.PROVISIONAL_ACK): State.READY,
    (State.INFLIGHT, Event.CHANGE_INVISIBLE): State.INFLIGHT,
    (State.INFLIGHT, Event.RELEASE): State.READY,
    (State.INFLIGHT, Event.GIVE_BACK): State.READY,
    (State.INFLIGHT, Event.RETRY): State.WAITING_RETRY,
    (State.INFLIGHT, Event.EXHAUST): State.DLQ,
    (State.INFLIGHT, Event.FORWARD_TO_DLQ): State.DLQ,
    (State.INFLIGHT, Event.RESET): State.READY,
    (State.WAITING_RETRY, Event.BACKOFF_ELAPSED): State.READY,
    (State.WAITING_RETRY, Event.RESET): State.READY,
    (State.WAITING_RETRY, Event.SKIP): State.COMMIT,
    (State.COMMIT, Event.RESET): State.READY,
    (State.DLQ, Event.REDRIVE): State.READY,
    (State.DLQ, Event.RESET): State.READY,
}


def sources(event: Event) -> frozenset[State]:
    """The states in which the event may happen."""
    return frozenset(state for state, legal in TRANSITIONS if legal is event)


def target(event: Event) -> State:
    """The one state the event leads to."""
    return _TARGETS[event]


def mermaid() -> str:
    """The table as a Mermaid state diagram, edges in the table's order."""
    edges = [f"    {source} --> {end}: {event}" for (source, event), end in TRANSITIONS.items()]
    return "\n".join(["stateDiagram-v2", "    [*] --> READY", *edges, ""])


_TARGETS = {event: end for (_, event), end in TRANSITIONS.items()}
assert all(_TARGETS[event] is end for (_, event), end in TRANSITIONS.items()), "an event names its one destination"
assert set(_TARGETS) == set(Event), "every event leads somewhere"
