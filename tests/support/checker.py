"""Judges what clients saw: a history of calls, and what the database holds in the end, against the promises.

A call has the moment it was invoked and the moment it completed, in ms of one monotonic clock, and an outcome: OK,
REFUSED, or UNKNOWN (the connection broke, the server did not say). What is unknown may have happened or not, so it
excuses; what is OK binds. The load judged here takes whole topics, gives nothing back and resets nothing.

The invariants carry the numbers of the reliability report:

I1 no loss · I2 no invention · I3 one hold at a time · I4 a stale handle does nothing · I5 an ack is final ·
I7 attempts grow · I8 a dead letter had all its attempts · I11 a repeated send stores nothing · I13 conservation
"""

from __future__ import annotations

import bisect
import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

# A server counts in whole ms, and takes its clock anew from the wall's at every start.
CLOCK_SLACK_MS = 5.0


class Outcome(StrEnum):
    OK = "OK"
    REFUSED = "REFUSED"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Call:
    """What every call has. An UNKNOWN one completed when the client gave up; it may take effect later than that."""

    outcome: Outcome
    invoked_ms: float
    completed_ms: float

    @property
    def may_have_happened(self) -> bool:
        return self.outcome is not Outcome.REFUSED


@dataclass(frozen=True, slots=True)
class Send(Call):
    message_id: str
    digest: str  # of body and properties


@dataclass(frozen=True, slots=True)
class Delivered:
    message_id: str
    digest: str
    attempt: int
    handle: str


@dataclass(frozen=True, slots=True)
class Receive(Call):
    """`deliveries` are those that were read, though the answer may have broken off."""

    group: str
    invisible_ms: float
    deliveries: tuple[Delivered, ...] = ()


@dataclass(frozen=True, slots=True)
class Ack(Call):
    group: str
    message_id: str
    handle: str


@dataclass(frozen=True, slots=True)
class ChangeInvisible(Call):
    group: str
    message_id: str
    handle: str
    duration_ms: float
    new_handle: str = ""


class Stored(NamedTuple):
    message_id: str
    digest: str
    message_group: str = ""
    queue: int = 0
    offset: int = 0


class StateRow(NamedTuple):
    """One message's state in one group."""

    group: str
    message_id: str
    state: str
    attempt: int | None


class Lag(NamedTuple):
    """A group's gauges."""

    group: str
    ready: int
    inflight: int
    waiting_retry: int
    dead_letters: int
    stored: int


@dataclass
class Final:
    """What the database holds after the load; `drained` says that all of it was consumed before the look."""

    stored: list[Stored]  # in the order of queues and offsets
    states: list[StateRow]
    lag: list[Lag]
    max_attempts: int
    drained: bool = True


@dataclass
class History:
    """What clients did and saw, in any order."""

    calls: list[Call] = field(default_factory=list)

    def add(self, call: Call) -> None:
        self.calls.append(call)

    def write(self, path: Path) -> None:
        """One JSON line per call, to look at a failing run."""
        lines = (json.dumps({"call": type(call).__name__, **dataclasses.asdict(call)}) for call in self.calls)
        path.write_text("\n".join(lines) + "\n")


class Violation(NamedTuple):
    invariant: str
    what: str


Law = Callable[["Seen", "Final"], Iterable[Violation]]


def check(history: History, final: Final, laws: Iterable[Law] | None = None) -> list[Violation]:
    """Every broken promise; an empty list is what is wanted. Without `laws`: all of this module."""
    seen = Seen(history)
    return [violation for law in laws or LAWS.values() for violation in law(seen, final)]


class Grant(NamedTuple):
    """One delivery of a message to a group."""

    delivered: Delivered
    receive: Receive

    @property
    def sure_until_ms(self) -> float:
        """The hold cannot have ended by itself before this."""
        return self.receive.invoked_ms + self.receive.invisible_ms


Key = tuple[str, str]  # group, message id


class Seen:
    """The history, indexed."""

    def __init__(self, history: History) -> None:
        self.sends: dict[str, list[Send]] = defaultdict(list)
        self.receives: dict[str, list[Receive]] = defaultdict(list)
        self.grants: dict[Key, list[Grant]] = defaultdict(list)
        self.acks: dict[Key, list[Ack]] = defaultdict(list)
        self.changes: dict[Key, list[ChangeInvisible]] = defaultdict(list)
        for call in sorted(history.calls, key=lambda each: each.invoked_ms):
            self._add(call)
        for grants in self.grants.values():
            grants.sort(key=lambda grant: grant.delivered.attempt)
        self._lost_ms = {
            group: [each.invoked_ms for each in receives if each.outcome is Outcome.UNKNOWN]
            for group, receives in self.receives.items()
        }

    def _add(self, call: Call) -> None:
        match call:
            case Send():
                self.sends[call.message_id].append(call)
            case Receive():
                self.receives[call.group].append(call)
                for delivered in call.deliveries:
                    self.grants[call.group, delivered.message_id].append(Grant(delivered, call))
            case Ack():
                self.acks[call.group, call.message_id].append(call)
            case ChangeInvisible():
                self.changes[call.group, call.message_id].append(call)

    def handles_of(self, key: Key, grant: Grant) -> set[str]:
        """The handles of one hold: the first, and those that changes made of it."""
        handles = {grant.delivered.handle}
        for change in self.changes[key]:
            if change.handle in handles and change.new_handle:
                handles.add(change.new_handle)
        return handles

    def answers_lost(self, group: str, until_ms: float) -> int:
        """How many receives of the group, invoked before `until_ms`, got no whole answer."""
        return bisect.bisect_left(self._lost_ms[group], until_ms)

    def grant_of(self, key: Key, handle: str) -> Grant | None:
        return next((grant for grant in self.grants[key] if handle in self.handles_of(key, grant)), None)


def _no_loss(seen: Seen, final: Final) -> Iterator[Violation]:
    stored = Counter(row.message_id for row in final.stored)
    digests = {row.message_id: row.digest for row in final.stored}
    states = Counter((row.group, row.message_id) for row in final.states)
    groups = sorted({lag.group for lag in final.lag})
    for message_id, sends in seen.sends.items():
        sure = any(send.outcome is Outcome.OK for send in sends)
        if sure and not stored[message_id]:
            yield Violation("I1", f"{message_id} was sent OK and is not stored")
        if stored[message_id] > 1:
            yield Violation("I11", f"{message_id} is stored {stored[message_id]} times")
        if stored[message_id] and digests[message_id] not in {send.digest for send in sends}:
            yield Violation("I1", f"{message_id} is stored with another content than was sent")
        for group in groups if stored[message_id] else ():
            if states[group, message_id] != 1:
                yield Violation("I1", f"{message_id} has {states[group, message_id]} states in {group}, not one")
    yield from _no_silent_end(seen, final)


def _no_silent_end(seen: Seen, final: Final) -> Iterator[Violation]:
    """A commit nobody asked for is a loss as well, and so is what a drain leaves behind."""
    for row in final.states:
        key = (row.group, row.message_id)
        if row.state == "COMMIT" and not any(ack.may_have_happened for ack in seen.acks[key]):
            yield Violation("I1", f"{row.message_id} is committed in {row.group} though nobody acked it")
        if final.drained and row.state not in {"COMMIT", "DLQ"}:
            yield Violation("I1", f"{row.message_id} is still {row.state} in {row.group} after the drain")


def _no_invention(seen: Seen, final: Final) -> Iterator[Violation]:
    for (group, message_id), grants in seen.grants.items():
        for grant in grants:
            earlier = [s for s in seen.sends[message_id] if s.invoked_ms <= grant.receive.completed_ms]
            if not any(send.may_have_happened for send in earlier):
                yield Violation("I2", f"{group} received {message_id}, which nobody had sent")
            elif grant.delivered.digest not in {send.digest for send in earlier}:
                yield Violation("I2", f"{group} received {message_id} with another content than was sent")
    for row in final.stored:
        if row.message_id not in seen.sends:
            yield Violation("I2", f"{row.message_id} is stored, and nobody sent it")


def _one_hold(seen: Seen, _final: Final) -> Iterator[Violation]:
    for key, grants in seen.grants.items():
        for earlier, later in _pairs(grants):
            end_ms = _surely_held_until_ms(seen, key, earlier)
            if later.receive.completed_ms < end_ms - CLOCK_SLACK_MS:
                left_ms = end_ms - later.receive.completed_ms
                yield Violation(
                    "I3",
                    f"{key[1]} came to {key[0]} as attempt {later.delivered.attempt} while attempt"
                    f" {earlier.delivered.attempt} was held for {left_ms:.0f} ms more",
                )


def _surely_held_until_ms(seen: Seen, key: Key, grant: Grant) -> float:
    """Until when this hold cannot have ended, whatever became of the calls whose outcome is unknown."""
    handles = seen.handles_of(key, grant)
    end_ms = grant.sure_until_ms
    for change in seen.changes[key]:
        if change.handle in handles and change.may_have_happened:
            # A repeated change gets the first one's answer, and prolongs nothing.
            began_ms = min(each.invoked_ms for each in seen.changes[key] if _are_alike(each, change))
            new_end_ms = began_ms + change.duration_ms
            end_ms = new_end_ms if change.outcome is Outcome.OK else min(end_ms, new_end_ms)
    acks = [ack for ack in seen.acks[key] if ack.handle in handles and ack.may_have_happened]
    return min([end_ms, *(ack.invoked_ms for ack in acks)])


def _are_alike(one: ChangeInvisible, other: ChangeInvisible) -> bool:
    return one.may_have_happened and (one.handle, one.duration_ms) == (other.handle, other.duration_ms)


def _stale_handles(seen: Seen, _final: Final) -> Iterator[Violation]:
    for key in {**seen.acks, **seen.changes}:
        for change in seen.changes[key]:
            if change.outcome is Outcome.OK and _is_stale(seen, key, change):
                yield Violation("I4", f"a change of {key[1]} in {key[0]} was OK with a handle that no longer counted")
        for ack in seen.acks[key]:
            if ack.outcome is Outcome.OK and _is_stale(seen, key, ack) and not _is_acked_by(seen, key, ack):
                yield Violation("I4", f"an ack of {key[1]} in {key[0]} was OK with a handle that no longer counted")


def _is_stale(seen: Seen, key: Key, call: Ack | ChangeInvisible) -> bool:
    """Whether the handle had surely been replaced when the call began: by a newer grant, or by a change."""
    grant = seen.grant_of(key, call.handle)
    if grant is None:
        return True
    replaced = any(
        later.delivered.attempt > grant.delivered.attempt and later.receive.completed_ms < call.invoked_ms
        for later in seen.grants[key]
    )
    return replaced or any(
        change.outcome is Outcome.OK
        and change.handle == call.handle
        and change.new_handle != change.handle
        and change.completed_ms < call.invoked_ms
        # The handle just replaced, repeated with the same duration, gets the same answer.
        and not (isinstance(call, ChangeInvisible) and call.new_handle == change.new_handle)
        for change in seen.changes[key]
    )


def _is_acked_by(seen: Seen, key: Key, ack: Ack) -> bool:
    """Whether another ack may have committed the message: then an old one whose own time has not come is OK too."""
    grant = seen.grant_of(key, ack.handle)
    return grant is not None and any(
        other.handle != ack.handle and other.may_have_happened and other.invoked_ms < ack.completed_ms
        for other in seen.acks[key]
    )


def _acks_final(seen: Seen, final: Final) -> Iterator[Violation]:
    acked_ms: dict[Key, float] = {}
    for key, acks in seen.acks.items():
        done = [ack.completed_ms for ack in acks if ack.outcome is Outcome.OK]
        if done:
            acked_ms[key] = min(done)
    for key, at_ms in acked_ms.items():
        for grant in seen.grants[key]:
            if grant.receive.invoked_ms > at_ms:
                late_ms = grant.receive.invoked_ms - at_ms
                yield Violation("I5", f"{key[1]} came to {key[0]} again, asked for {late_ms:.0f} ms after its ack")
    for row in final.states:
        if (row.group, row.message_id) in acked_ms and row.state != "COMMIT":
            yield Violation("I5", f"{row.message_id} was acked in {row.group} and is {row.state}")


def _attempts(seen: Seen, _final: Final) -> Iterator[Violation]:
    for (group, message_id), grants in seen.grants.items():
        numbers = [grant.delivered.attempt for grant in grants]
        if min(numbers) < 1:
            yield Violation("I7", f"{message_id} came to {group} as attempt {min(numbers)}")
        if len(set(numbers)) < len(numbers):
            yield Violation("I7", f"{message_id} came to {group} twice with one attempt number: {numbers}")
        for earlier, later in _pairs(grants):
            if later.receive.completed_ms < earlier.receive.invoked_ms:
                yield Violation("I7", f"attempts of {message_id} in {group} went back: {numbers}")
        yield from _gaps(seen, group, message_id, grants)


def _gaps(seen: Seen, group: str, message_id: str, grants: list[Grant]) -> Iterator[Violation]:
    """An attempt nobody saw is fine only if an answer was lost that may have carried it."""
    before = 0
    for grant in grants:
        attempt = grant.delivered.attempt
        missing = attempt - before - 1
        if missing > 0 and missing > seen.answers_lost(group, grant.receive.completed_ms):
            yield Violation("I7", f"{message_id} came to {group} as attempt {attempt} after {before}")
        before = attempt


def _dead_letters(seen: Seen, final: Final) -> Iterator[Violation]:
    for (group, message_id), grants in seen.grants.items():
        if grants[-1].delivered.attempt > final.max_attempts:
            yield Violation("I8", f"{message_id} came to {group} as attempt {grants[-1].delivered.attempt}")
    for row in final.states:
        if row.state == "DLQ" and row.attempt != final.max_attempts:
            yield Violation("I8", f"{row.message_id} is a dead letter of {row.group} after {row.attempt} attempts")


def _conservation(_seen: Seen, final: Final) -> Iterator[Violation]:
    counted = Counter((row.group, row.state) for row in final.states)
    for lag in final.lag:
        gauges = {
            "READY": lag.ready,
            "INFLIGHT": lag.inflight,
            "WAITING_RETRY": lag.waiting_retry,
            "DLQ": lag.dead_letters,
        }
        for state, gauge in gauges.items():
            if gauge != counted[lag.group, state]:
                yield Violation("I13", f"{lag.group} counts {gauge} {state}, there are {counted[lag.group, state]}")
        total = sum(count for (group, _), count in counted.items() if group == lag.group)
        if not total == lag.stored == len(final.stored):
            yield Violation(
                "I13", f"{lag.group} has {total} states of {len(final.stored)} messages, and counts {lag.stored} stored"
            )


def _pairs(grants: list[Grant]) -> Iterable[tuple[Grant, Grant]]:
    """Each grant with every later attempt."""
    return ((one, other) for at, one in enumerate(grants) for other in grants[at + 1 :])


LAWS: dict[str, Law] = {
    "no loss": _no_loss,
    "no invention": _no_invention,
    "one hold": _one_hold,
    "stale handles": _stale_handles,
    "acks are final": _acks_final,
    "attempts": _attempts,
    "dead letters": _dead_letters,
    "conservation": _conservation,
}
