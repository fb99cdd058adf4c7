"""Why a message is in its state, in one sentence.

Queries collect the facts about one message in one group; only this module puts them into words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from popserver.delivery.deliveries import DeliveryRow
from popserver.model.group import Group, HistoryLevel, Mode
from popserver.model.names import Resource
from popserver.model.retry import SUSPENDED
from popserver.model.states import ACKED, State

When = Callable[[int], str]  # epoch milliseconds


class HoldFacts(NamedTuple):
    """A stored delivery: of the message itself, or of the one that its message group waits for."""

    message_id: str
    row: DeliveryRow

    @property
    def state(self) -> State:
        return State(self.row.state)


class DeathFacts(NamedTuple):
    """The facts about a dead letter."""

    at_ms: int
    attempt: int
    reason: str


class PendingFacts(NamedTuple):
    """A message that is in no queue yet: a delayed message, or a half message (`is_half`)."""

    due_at_ms: int
    is_half: bool
    checks: int
    pending_id: int = 0


class PauseFacts(NamedTuple):
    """The pause because of which the group does not get the message; None: in all topics, all messages."""

    topic: Resource | None
    message_group: str | None
    at_ms: int
    by: str


class RetryFacts(NamedTuple):
    """The newest retry message of a message that its consumer sent back."""

    topic_name: str
    offset: int
    failures: int


class RedrivenFacts(NamedTuple):
    """The redrive of a dead letter; `target` None means only to its group."""

    plan_id: str
    at_ms: int
    target: str | None


class SubscriberFacts(NamedTuple):
    """How many clients of a group subscribe to a lite topic, and the first of them by name."""

    number: int
    client_ids: tuple[str, ...]


class MessageFacts(NamedTuple):
    """All facts about one message in one group; if a `retry` has replaced it, about that retry message.

    `ahead` is how many messages the group reads before this one; None if it has read it. `head` is the message that its
    message group waits for, `last_reason` the reason of the last step in the history, if it `has_steps`. `is_lite`: the
    message group is a lite topic; `subscribers` are the clients of the group that get it, None if its clients do not
    choose. `ahead` then counts the messages of the lite topic, up to 1,000. `is_expired`: the lite topic has expired
    since, and the group was not seen to be done with the message before. `stuck`: why it is never delivered unless the
    store is repaired.
    """

    group: Group
    state: State | None  # None: the group has not received from the topic yet
    ahead: int | None = None
    hold: HoldFacts | None = None
    death: DeathFacts | None = None
    message_group: str | None = None
    head: HoldFacts | None = None
    last_reason: str = ""
    has_steps: bool = True
    scheduled: PendingFacts | None = None
    retry: RetryFacts | None = None
    redriven: RedrivenFacts | None = None
    pause: PauseFacts | None = None
    is_lite: bool = False
    subscribers: SubscriberFacts | None = None
    is_expired: bool = False
    stuck: str | None = None


def sentence(found: MessageFacts, when: When) -> str:
    """The sentence; `when` formats a time for people."""
    words = _sentence(found, when)
    if found.retry is not None and found.death is None:
        words = f"{_handed_back(found.retry)}, {words}"
    return words if found.redriven is None or found.death is not None else f"{_sent_back(found, when)}, {words}"


def _sentence(found: MessageFacts, when: When) -> str:
    if found.stuck is not None:
        return f"{_named_state(found)}, and stuck: {found.stuck}; repair it with: popmq repair"
    if found.scheduled is not None:
        return _scheduled(found.scheduled, when)
    if found.state is None and found.is_expired:
        return f"{_expired(found)}; group '{found.group.name}' has not received from this topic yet"
    if found.state is None and found.retry is not None:
        return f"READY: group '{found.group.name}' has committed no offset in this queue yet"
    if found.state is None:
        return (
            f"READY for group '{found.group.name}', which has not received from this topic yet; it will start at the"
            f" {found.group.consume_from.lower()} message"
        )
    return _SENTENCES[found.state](found, when)


def facts(found: MessageFacts, when: When) -> list[tuple[str, str]]:
    """The facts for the sentence, as (name, value)."""
    listed: list[tuple[str, object]] = [("group", found.group.name), ("state", found.state and found.state.shown)]
    listed += [(_kind(found), found.message_group), ("messages ahead", found.ahead)]
    listed.append(("lite topic expired", "yes" if found.is_expired else None))
    if found.subscribers is not None:
        listed.append(("clients that subscribe to it", found.subscribers.number))
        listed += [("subscriber", each) for each in found.subscribers.client_ids]
    if found.retry is not None:
        listed += [("failed", f"{found.retry.failures} times"), ("retry topic", found.retry.topic_name)]
        listed.append(("offset there", found.retry.offset))
    if found.redriven is not None:
        listed += [("redriven by plan", found.redriven.plan_id), ("redriven", when(found.redriven.at_ms))]
        listed.append(("redriven to topic", found.redriven.target))
    listed += _of_hold("", found.hold, found.group, when)
    if found.head is not None and found.head != found.hold:
        listed.append((f"first of its {_kind(found)}", found.head.message_id))
        listed += [("its state", found.head.state.shown), *_of_hold("its ", found.head, found.group, when)]
    if found.pause is not None:
        listed += [("paused", when(found.pause.at_ms)), ("paused by", found.pause.by)]
    if found.death is not None:
        listed += [("died", when(found.death.at_ms)), ("attempt", found.death.attempt)]
        listed.append(("reason", found.death.reason))
    if found.scheduled is not None:
        listed += [("kind", "HALF" if found.scheduled.is_half else "DELAY")]
        listed.append(("due", when(found.scheduled.due_at_ms)))
    return [(name, str(value)) for name, value in listed if value not in (None, "")]


def _of_hold(whose: str, hold: HoldFacts | None, group: Group, when: When) -> list[tuple[str, object]]:
    if hold is None:
        return []
    facts: list[tuple[str, object]] = [(f"{whose}attempt", f"{hold.row.attempt} of {group.retry.max_attempts}")]
    if hold.state in ACKED:
        return [*facts, (f"{whose}ack", "provisional")]
    if hold.state is not State.READY:
        facts.append((f"{whose}hold or pause ends", when(hold.row.visible_at_ms)))
    return [*facts, (f"{whose}client", hold.row.client_id if hold.state is State.INFLIGHT else None)]


def _scheduled(found: PendingFacts, when: When) -> str:
    if not found.is_half:
        return f"not in a queue yet: delayed until {when(found.due_at_ms)}"
    return (
        f"not in a queue yet: a half message whose transaction is undecided; its producers were asked {found.checks}"
        f" times, the next time is {when(found.due_at_ms)}"
    )


def _named_state(found: MessageFacts) -> str:
    if found.scheduled is not None:
        return "not in a queue yet"
    return found.state.shown if found.state is not None else State.READY


def _ready(found: MessageFacts, when: When) -> str:
    if found.is_expired:
        return f"READY, but {_expired(found)}; the group's lag counts it until a receive of the group passes it"
    if found.pause is not None:
        return f"READY, but {_paused(found, found.pause, when)}"
    if found.head is not None and found.head != found.hold:
        return f"READY, but {_its_group(found)} is locked: {_head(found, when)}"
    if found.subscribers is not None and not found.subscribers.number:
        return f"READY, but no client of group '{found.group.name}' subscribes to {_its_group(found)}"
    who = _who_gets(found)
    if found.hold is not None and not found.hold.row.attempt:
        return f"READY: the next receive of {who} may take it"
    if found.hold is not None:
        of_whom = f" of {who}" if found.subscribers else ""
        attempt = found.hold.row.attempt
        return f"READY again after attempt {attempt}{_because(found)}; the next receive{of_whom} may take it"
    if found.ahead:
        of_what = f" of {_its_group(found)}" if found.subscribers else ""
        messages = "1 message" if found.ahead == 1 else f"{found.ahead} messages"
        return f"READY: {who} has {messages}{of_what} to read before it"
    verb = "pull" if found.group.mode is Mode.PULL else "receive"
    return f"READY: the next {verb} of {who} may take it"


def _who_gets(found: MessageFacts) -> str:
    if found.subscribers is None:
        return f"group '{found.group.name}'"
    number, client_ids = found.subscribers
    return f"client '{client_ids[0]}'" if number == 1 else f"one of {number} clients"


def _paused(found: MessageFacts, pause: PauseFacts, when: When) -> str:
    """What is paused, and how to resume it."""
    what, options = f"group '{found.group.name}' is paused", ""
    if pause.topic is not None:
        what, options = f"{what} in topic '{pause.topic}'", f" --topic {pause.topic.name}"
    if pause.message_group is not None:
        what = f"{_kind(found)} '{pause.message_group}' is paused for group '{found.group.name}'"
        options += f" --{_kind(found).replace(' ', '-')} '{pause.message_group}'"
    by = f" by '{pause.by}'" if pause.by else ""
    return f"{what} since {when(pause.at_ms)}{by}; resume it with: popmq group resume {found.group.name.name}{options}"


def _sent_back(found: MessageFacts, when: When) -> str:
    assert found.redriven is not None, "only a redriven message has this"
    to = "" if found.redriven.target is None else f" to topic '{found.redriven.target}'"
    return f"redriven{to} by plan '{found.redriven.plan_id}' {when(found.redriven.at_ms)}"


def _handed_back(retry: RetryFacts) -> str:
    if not retry.failures:
        return f"it is at offset {retry.offset} of topic '{retry.topic_name}'"
    times = "once" if retry.failures == 1 else f"{retry.failures} times"
    return f"sent back {times}, its retry is at offset {retry.offset} of topic '{retry.topic_name}'"


def _inflight(found: MessageFacts, when: When) -> str:
    assert found.hold is not None, "a held message has a delivery"
    return _held(found.hold, found.group, when)


def _acked_provisionally(found: MessageFacts, when: When) -> str:
    return f"acked; it is committed when all messages before it in {_its_group(found)} end: {_head(found, when)}"


def _acked_in_transaction(_found: MessageFacts, _when: When) -> str:
    return f"INFLIGHT: {_ACKED_IN_TRANSACTION}"


def _waiting_retry(found: MessageFacts, when: When) -> str:
    assert found.hold is not None, "a waiting message has a delivery"
    due = when(found.hold.row.visible_at_ms)
    if _is_suspended(found.hold) or found.last_reason == SUSPENDED:
        return f"WAITING_RETRY: its consumer has suspended {_its_group(found)} until {due}"
    attempts = f"attempt {found.hold.row.attempt} of {found.group.retry.max_attempts}"
    words = f"WAITING_RETRY: {attempts} failed{_because(found)}; the next attempt is {due}"
    return words if found.pause is None else f"{words}, but {_paused(found, found.pause, when)}"


def _commit(found: MessageFacts, _when: When) -> str:
    if found.group.mode is Mode.PULL:
        return f"COMMIT: group '{found.group.name}' has committed an offset beyond it"
    if found.is_expired:
        return f"COMMIT: {_expired(found)}; {_unknown(found)}"
    if found.group.history is HistoryLevel.ALL and found.has_steps:
        return f"COMMIT: group '{found.group.name}' is done with it{_because(found)}"
    if found.group.history is HistoryLevel.ALL:
        return (
            f"COMMIT: group '{found.group.name}' is done with it, and its history has no step of it: the filter of a"
            " consumer refused it, which is not recorded, or it was done before the history began"
        )
    return (
        f"COMMIT: acked, or refused by the filter of a consumer of group '{found.group.name}', or skipped by an"
        f" operator; history '{found.group.history}' does not keep which; of later messages"
        f" 'popmq group update {found.group.name.name} --history all' keeps acks and skips"
    )


def _dead(found: MessageFacts, when: When) -> str:
    if found.death is None:
        return f"DLQ: a dead letter of group '{found.group.name}'"
    return (
        f"DLQ: a dead letter of group '{found.group.name}' since {when(found.death.at_ms)}, after attempt"
        f" {found.death.attempt}: {found.death.reason}"
    )


def _head(found: MessageFacts, when: When) -> str:
    if found.head is None:
        return "no message of it is held now"
    return f"message {found.head.message_id} comes first, {_held(found.head, found.group, when)}"


def _held(hold: HoldFacts, group: Group, when: When) -> str:
    if _is_suspended(hold):
        return f"{hold.state}: {_holder(hold)} has suspended it until {when(hold.row.visible_at_ms)}"
    attempts = f"attempt {hold.row.attempt} of {group.retry.max_attempts}"
    if hold.state is State.INFLIGHT:
        return f"INFLIGHT: {_holder(hold)} has it, {attempts}, until {when(hold.row.visible_at_ms)}"
    if hold.state is State.WAITING_RETRY:
        return f"WAITING_RETRY: {attempts} failed, the next attempt is {when(hold.row.visible_at_ms)}"
    if hold.state is State.ACKED_IN_TRANSACTION:
        return _ACKED_IN_TRANSACTION
    return f"READY again after {attempts}"


def _is_suspended(hold: HoldFacts) -> bool:
    """Its first attempt did not count. After later attempts a suspension cannot be told from a failure."""
    return not hold.row.attempt and hold.state in (State.INFLIGHT, State.WAITING_RETRY)


def _holder(hold: HoldFacts) -> str:
    return f"client '{hold.row.client_id}'" if hold.row.client_id else "a client that is gone"


def _its_group(found: MessageFacts) -> str:
    return f"{_kind(found)} '{found.message_group}'"


def _unknown(found: MessageFacts) -> str:
    """What else may have happened to a message of an expired lite topic."""
    if found.group.history is HistoryLevel.ALL:
        return f"group '{found.group.name}' was not done with it before"
    return f"history '{found.group.history}' does not keep whether group '{found.group.name}' acked it before"


def _expired(found: MessageFacts) -> str:
    return f"{_its_group(found)} has expired, so the message counts as consumed in every group of mode POP"


def _kind(found: MessageFacts) -> str:
    return "lite topic" if found.is_lite else "message group"


def _because(found: MessageFacts) -> str:
    return f" ({found.last_reason})" if found.last_reason else ""


_ACKED_IN_TRANSACTION = "its consumer acked it in its own SQL transaction, and the server commits it now"
_SENTENCES = {
    State.READY: _ready,
    State.INFLIGHT: _inflight,
    State.WAITING_RETRY: _waiting_retry,
    State.COMMIT: _commit,
    State.DLQ: _dead,
    State.ACKED_PROVISIONALLY: _acked_provisionally,
    State.ACKED_IN_TRANSACTION: _acked_in_transaction,
}
