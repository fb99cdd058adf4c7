"""Message groups (I6): nobody gets a message before the earlier ones of its message group are done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from proof.history.events import Consume, OrderedSend
from tests.support.checker import Ack, Final, Grant, History, Outcome, Seen, Violation

# Consumer group and message id; consumer groups and message groups are both groups, so the names are long.
Key = tuple[str, str]
# How many later messages are looked at to learn that an earlier one is done.
LOOK_AHEAD = 20


def stored_as_sent(seen: Seen, final: Final) -> Iterator[Violation]:
    """A message whose OK came before another one was sent is stored before it."""
    for run in _runs(final).values():
        latest_end_ms, latest = float("-inf"), ""
        for message_id in reversed(run):
            sends = [send for send in seen.sends[message_id] if isinstance(send, OrderedSend)]
            if not sends:
                continue
            began_ms = min(send.invoked_ms for send in sends)
            done_ms = min((send.completed_ms for send in sends if send.outcome is Outcome.OK), default=float("inf"))
            # `latest` is stored after this one, so it cannot have been answered before this one was sent.
            if latest and latest_end_ms < began_ms:
                yield Violation("I6", f"{message_id} is stored before {latest}, whose OK came before it was sent")
            if not latest or done_ms < latest_end_ms:
                latest_end_ms, latest = done_ms, message_id


def in_order(seen: Seen, final: Final) -> Iterator[Violation]:
    """Each delivery comes after, or in one answer behind, all earlier messages that are not done."""
    states = {(row.group, row.message_id): row.state for row in final.states}
    for run in _runs(final).values():
        for group in sorted({lag.group for lag in final.lag}):
            yield from _one_run(seen, group, run, states)


def _one_run(seen: Seen, group: str, run: list[str], states: dict[Key, str]) -> Iterator[Violation]:
    ends = [_may_be_done_ms(seen, (group, message_id), states) for message_id in run]
    for at, message_id in enumerate(run):
        for grant in seen.grants[group, message_id]:
            waits = (run[place] for place in range(at) if ends[place] > grant.receive.completed_ms)
            earlier = next((each for each in waits if not _is_before(grant, each)), None)
            if earlier is not None:
                yield Violation("I6", f"{group} got {message_id} before {earlier} of its message group was done")


def acks_final(seen: Seen, final: Final) -> Iterator[Violation]:
    """I5 of a message group: an ack is final once the earlier messages are done; until then an earlier message that
    comes again brings the acked one with it (protocol 5.3)."""
    for run in _runs(final).values():
        for group in sorted({lag.group for lag in final.lag}):
            before_ms, earlier = float("-inf"), list[float]()
            for at, message_id in enumerate(run):
                yield from _ack_final(seen, (group, message_id), before_ms, earlier)
                earlier += [grant.receive.completed_ms for grant in seen.grants[group, message_id]]
                before_ms = max(before_ms, _surely_done_ms(seen, group, run, at, before_ms))
    acked = {key for key, acks in seen.acks.items() if any(ack.outcome is Outcome.OK for ack in acks)}
    for row in final.states:
        if final.drained and (row.group, row.message_id) in acked and row.state != "COMMIT":
            yield Violation("I5", f"{row.message_id} was acked in {row.group} and is {row.state}")


def consumed_in_order(history: History, final: Final) -> Iterator[Violation]:
    """A listener gets a message when listeners have ended with all earlier ones of its message group, or they are done
    otherwise: the consumer must not give it two at once that came in one answer."""
    seen, calls = Seen(history), defaultdict[Key, list[Consume]](list)
    for call in history.calls:
        if isinstance(call, Consume):
            calls[call.group, call.message_id].append(call)
    states = {(row.group, row.message_id): row.state for row in final.states}
    for group in sorted({key[0] for key in calls}):
        for run in _runs(final).values():
            before_ms, latest = float("-inf"), ""
            for message_id in run:
                key = (group, message_id)
                if any(call.invoked_ms < before_ms for call in calls[key]):
                    yield Violation("I6", f"a listener of {group} got {message_id} before it had ended with {latest}")
                ended = [call.completed_ms for call in calls[key] if call.outcome is Outcome.OK]
                done_ms = min([*ended, _may_be_done_ms(seen, key, states)])
                if done_ms > before_ms:
                    before_ms, latest = done_ms, message_id


def _ack_final(seen: Seen, key: Key, before_ms: float, earlier: Sequence[float]) -> Iterator[Violation]:
    """`before_ms`: from when all earlier messages are surely done. `earlier`: when they came, in ms."""
    for grant, again in pairwise(seen.grants[key]):
        if again.delivered.attempt > grant.delivered.attempt + 1:
            continue  # nobody saw what happened between
        acked_ms = min((ack.completed_ms for ack in _acked_ok(seen, key, grant)), default=float("inf"))
        # An earlier one that came again in between has brought this one with it, perhaps in a later answer.
        was_brought = any(acked_ms < came_ms < again.receive.completed_ms for came_ms in earlier)
        if again.receive.invoked_ms > max(acked_ms, before_ms) and not was_brought:
            yield Violation("I5", f"{key[1]} came to {key[0]} again after its ack was final")


def _acked_ok(seen: Seen, key: Key, grant: Grant) -> list[Ack]:
    handles = seen.handles_of(key, grant)
    return [ack for ack in seen.acks[key] if ack.outcome is Outcome.OK and ack.handle in handles]


def _runs(final: Final) -> dict[tuple[int, str], list[str]]:
    """The messages of each message group, by queue and name, in the order in which they are stored."""
    runs: dict[tuple[int, str], list[str]] = defaultdict(list)
    for row in final.stored:
        if row.message_group:
            runs[row.queue, row.message_group].append(row.message_id)
    return runs


def _is_before(grant: Grant, earlier: str) -> bool:
    """Whether the same answer has the earlier message before this one."""
    for each in grant.receive.deliveries:
        if each.message_id == earlier:
            return True
        if each.handle == grant.delivered.handle:
            return False
    return False


def _may_be_done_ms(seen: Seen, key: Key, states: dict[Key, str]) -> float:
    """Before this it cannot have been done. A dead letter may have died when its last hold was granted."""
    begun = [ack.invoked_ms for ack in seen.acks[key] if ack.may_have_happened]
    if states.get(key) == "DLQ":
        begun += [grant.receive.invoked_ms for grant in seen.grants[key]] or [float("-inf")]
    return min(begun, default=float("inf"))


def _surely_done_ms(seen: Seen, group: str, run: list[str], at: int, before_ms: float) -> float:
    """From when it is surely done: it was acked after the earlier ones, or a later message came without it."""
    sure = [
        ack.completed_ms
        for ack in seen.acks[group, run[at]]
        if ack.outcome is Outcome.OK and ack.invoked_ms > before_ms
    ]
    later = [
        grant.receive.completed_ms
        for each in run[at + 1 : at + 1 + LOOK_AHEAD]
        for grant in seen.grants[group, each]
        if not _is_before(grant, run[at])
    ]
    return min([*sure, *later], default=float("inf"))
