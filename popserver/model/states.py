"""The states and events of a delivery, which is one message's life in one consumer group.

`TRANSITIONS` alone defines what may happen. Each event leads to exactly one state, from every state in
which it may happen. If there is a choice (retry or dead letter?), pure code decides *which event happened*
(`model.retry`), and this table decides the state. The conditions of SQL statements, the CHECK constraints, the views,
the grid test and the diagram in docs/lifecycle.md are made from it.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """The states of a delivery: five that users see (requirement L1), and two that are shown as one of these.

    A simple consumer never sees WAITING_RETRY (requirement L2).
    """

    READY = "READY"
    INFLIGHT = "INFLIGHT"
    WAITING_RETRY = "WAITING_RETRY"
    COMMIT = "COMMIT"
    DLQ = "DLQ"
    # Acked while an earlier message of its message group is not. Shown as READY until the earlier one ends.
    ACKED_PROVISIONALLY = "ACKED_PROVISIONALLY"
    # In a message group, and acked in its consumer's own transaction. Shown as INFLIGHT until the server has seen it.
    ACKED_IN_TRANSACTION = "ACKED_IN_TRANSACTION"

    @property
    def shown(self) -> State:
        """The state that users see in views, in the history and on the wire."""
        return SHOWN_AS.get(self, self)


SHOWN_AS = {State.ACKED_PROVISIONALLY: State.READY, State.ACKED_IN_TRANSACTION: State.INFLIGHT}
SHOWN = tuple(state for state in State if state not in SHOWN_AS)
# The states that have a row; the other states are derived.
STORED = tuple(state for state in State if state not in (State.COMMIT, State.DLQ))
# These states end at a time, or as soon as the server sees them. The others last until a client or an operator acts.
TIMED = frozenset({State.INFLIGHT, State.WAITING_RETRY, State.ACKED_IN_TRANSACTION})
# The consumer has acked the message, but its message group is not ready for that.
ACKED = frozenset(SHOWN_AS)


class Event(StrEnum):
    """What can happen to a delivery."""

    RECEIVE = "RECEIVE"  # a consumer takes it: a new hold, a new receipt handle, attempt + 1
    ACK = "ACK"  # its holder has processed it
    ACK_IN_TRANSACTION = "ACK_IN_TRANSACTION"  # its holder acks it by SQL; the server does the rest after the commit
    PROVISIONAL_ACK = "PROVISIONAL_ACK"  # its holder acks it before an earlier message of its message group
    SETTLE = "SETTLE"  # all earlier messages of its message group have ended: its provisional ack counts
    CHANGE_INVISIBLE = "CHANGE_INVISIBLE"  # its holder extends or shortens the hold: a new receipt handle
    RELEASE = "RELEASE"  # the hold ended (simple consumer), or its holder is gone
    GIVE_BACK = "GIVE_BACK"  # its holder returns it unused: the attempt does not count
    RETRY = "RETRY"  # a push consumer failed or its hold ended, and attempts remain
    BACKOFF_ELAPSED = "BACKOFF_ELAPSED"  # the interval before the retry is over
    EXHAUST = "EXHAUST"  # it failed and no attempt remains
    FORWARD_TO_DLQ = "FORWARD_TO_DLQ"  # its holder gives it up
    REDRIVE = "REDRIVE"  # an operator sends a dead letter back
    RESET = "RESET"  # an operator moves the group's progress: the hold ends, and the message is delivered again
    SKIP = "SKIP"  # an operator marks it as consumed without a delivery


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.READY, Event.RECEIVE): State.INFLIGHT,
    (State.READY, Event.SKIP): State.COMMIT,
    (State.INFLIGHT, Event.ACK): State.COMMIT,
    (State.INFLIGHT, Event.ACK_IN_TRANSACTION): State.ACKED_IN_TRANSACTION,
    (State.INFLIGHT, Event.PROVISIONAL_ACK): State.ACKED_PROVISIONALLY,
    (State.INFLIGHT, Event.CHANGE_INVISIBLE): State.INFLIGHT,
    (State.INFLIGHT, Event.RELEASE): State.READY,
    (State.INFLIGHT, Event.GIVE_BACK): State.READY,
    (State.INFLIGHT, Event.RETRY): State.WAITING_RETRY,
    (State.INFLIGHT, Event.EXHAUST): State.DLQ,
    (State.INFLIGHT, Event.FORWARD_TO_DLQ): State.DLQ,
    (State.INFLIGHT, Event.RESET): State.READY,
    (State.ACKED_PROVISIONALLY, Event.RECEIVE): State.INFLIGHT,
    (State.ACKED_PROVISIONALLY, Event.SETTLE): State.COMMIT,
    (State.ACKED_PROVISIONALLY, Event.RESET): State.READY,
    (State.ACKED_PROVISIONALLY, Event.SKIP): State.COMMIT,
    (State.ACKED_IN_TRANSACTION, Event.ACK): State.COMMIT,
    (State.ACKED_IN_TRANSACTION, Event.PROVISIONAL_ACK): State.ACKED_PROVISIONALLY,
    (State.ACKED_IN_TRANSACTION, Event.RESET): State.READY,
    (State.WAITING_RETRY, Event.BACKOFF_ELAPSED): State.READY,
    (State.WAITING_RETRY, Event.RESET): State.READY,
    (State.WAITING_RETRY, Event.SKIP): State.COMMIT,
    (State.COMMIT, Event.RESET): State.READY,
    (State.DLQ, Event.REDRIVE): State.READY,
    (State.DLQ, Event.RESET): State.READY,
}


def shown_as(state: State) -> frozenset[State]:
    """The states that are shown as this one."""
    return frozenset(each for each in State if each.shown is state)


def sources(event: Event) -> frozenset[State]:
    """The states in which the event may happen."""
    return frozenset(state for state, legal in TRANSITIONS if legal is event)


def target(event: Event) -> State:
    """The state after the event."""
    return _TARGETS[event]


def mermaid() -> str:
    """The table as a Mermaid state diagram, with its edges in the order of the table."""
    edges = [f"    {source} --> {end}: {event}" for (source, event), end in TRANSITIONS.items()]
    return "\n".join(["stateDiagram-v2", "    [*] --> READY", *edges, ""])


_TARGETS = {event: end for (_, event), end in TRANSITIONS.items()}
assert all(_TARGETS[event] is end for (_, event), end in TRANSITIONS.items()), "an event leads to one state"
assert set(_TARGETS) == set(Event), "every event leads to a state"


class CopyKind(StrEnum):
    """Why the server copied a message (docs/design/0018)."""

    DEAD_LETTER = "DEAD_LETTER"  # in topic %DLQ%<group>: a message that the group gave up
    RETRY = "RETRY"  # in topic %RETRY%<group>: stands for a message that a member sent back
    REPLACED_RETRY = "REPLACED_RETRY"  # the group was reset, and the same message was sent back again
    REDRIVEN = "REDRIVEN"  # in topic %RETRY%<group>: a dead letter that was redriven as a new message


class PendingKind(StrEnum):
    """What a pending message waits for."""

    DELAY = "DELAY"  # its delivery time
    HALF = "HALF"  # the commit or rollback of its producer


class PlanState(StrEnum):
    """The state of a redrive plan: DRAFT while its messages are recorded, PLANNED before the first is sent back."""

    DRAFT = "DRAFT"
    PLANNED = "PLANNED"
    RUNNING = "RUNNING"
    DONE = "DONE"
    CANCELLED = "CANCELLED"


class RedriveState(StrEnum):
    """The state of one message of a plan; SKIPPED: it was no longer a dead letter."""

    PLANNED = "PLANNED"
    REDRIVEN = "REDRIVEN"
    SKIPPED = "SKIPPED"


class MirrorState(StrEnum):
    """The state of a mirror, as its process reports it; HELD: it waits for something that it names."""

    RUNNING = "RUNNING"
    HELD = "HELD"
    STOPPED = "STOPPED"
    DONE = "DONE"


class LetterState(StrEnum):
    """Why a message is no longer a dead letter: it was redriven, or its group was reset to an earlier offset."""

    REDRIVEN = "REDRIVEN"
    RESET = "RESET"


class Change(StrEnum):
    """Whether a dead letter is changed before it is sent back."""

    NONE = "NONE"
    REPAIR = "REPAIR"
