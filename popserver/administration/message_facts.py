"""The facts about one message in one group, for `popmq why` (reads only)."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

from sqlalchemy import Connection, select

from popserver.administration.why import (
    DeathFacts,
    HoldFacts,
    MessageFacts,
    PauseFacts,
    PendingFacts,
    RedrivenFacts,
    RetryFacts,
    SubscriberFacts,
)
from popserver.catalog import facts as catalog_facts
from popserver.catalog import groups, pauses, topics
from popserver.catalog.progress import REACHED
from popserver.catalog.queues import STORED
from popserver.database import states_of
from popserver.delivery import delivered, history, holds
from popserver.delivery.deliveries import DeliveryRow
from popserver.delivery.history import HistoryStep
from popserver.delivery.retry_topic import RetryMessage, copies_of, first_key_of
from popserver.engine.clock import Times
from popserver.fifo import positions
from popserver.maintenance.repair import broken_around, broken_delay
from popserver.members.lite_subscriptions import clients_of
from popserver.messages import by_key, dead_letters, lite_topics, parts, read, redrives
from popserver.messages.dead_letters import DeadLetterRow
from popserver.model.errors import MessageNotFound
from popserver.model.group import Group, Mode
from popserver.model.message import id_from_bytes, id_to_bytes
from popserver.model.names import Resource
from popserver.model.states import LetterState, PendingKind, State
from popserver.model.topic import MessageType, message_key, offset_of, queue_of
from popserver.producing import pending_facts

AHEAD_MAX = 1_000
SUBSCRIBERS_MAX = 3  # named in an answer


class _AtRow(NamedTuple):
    """A group's progress in a queue."""

    next_offset: int
    resets: int
    min_offset: int


def message_facts(
    conn: Connection, group_name: Resource, topic_name: Resource | None, message_id: str, times: Times
) -> tuple[MessageFacts, list[HistoryStep]]:
    """The facts about that message in that group, and the history of its steps.

    Raises `MessageNotFound`, `ConsumerGroupNotFound`, `TopicNotFound`.
    """
    group = catalog_facts.group(conn, group_name)
    scheduled = _scheduled(conn, topic_name, message_id)
    try:
        _, key = read.locate(conn, topic_name, message_id)
    except MessageNotFound:
        if scheduled is None:
            raise
        broken = broken_delay(conn, scheduled.pending_id, times)
        stuck = None if broken is None else broken.symptom
        return MessageFacts(group, None, scheduled=scheduled, stuck=stuck), []
    letters = read.letters_of_removed(conn, message_id) if topic_name is None else []
    if (own := next((each for each in letters if each.group_id == group.group_id), None)) is not None:
        return _of_removed(conn, group, own)
    if key in {each.copy_key for each in letters}:
        raise _left_elsewhere(conn, letters, message_id)
    copies = _copies(conn, group, key)
    origin_key = _first_key(conn, group, key)
    back = _redriven(conn, group, origin_key)
    keys = [key, *(each.message_key for each in copies)]
    steps = _steps(conn, group, {*keys, origin_key})
    reason = next((each.reason for each in reversed(steps) if each.reason), "")
    if back is not None and group.mode is not Mode.PULL:
        found = _sent_back(conn, group, origin_key, back)
        at = delivered.redriven_to(conn, group, origin_key)
        stuck = None if at is None else _stuck(conn, group, at, found, times)
        return found._replace(last_reason=reason, stuck=stuck), steps
    found = of_stored(conn, group, keys[-1])._replace(redriven=back)
    found = found._replace(stuck=_stuck(conn, group, keys[-1], found, times))
    if copies:
        # From then on the retry message replaces the message.
        last = copies[-1]
        found = found._replace(retry=RetryFacts(last.topic_name, offset_of(last.message_key), last.lineage.failures))
    if found.is_expired and any(each.to_state == State.COMMIT for each in steps):
        found = found._replace(is_expired=False)  # the group was done with it before
    return found._replace(last_reason=reason, has_steps=bool(steps)), steps


def _steps(conn: Connection, group: Group, keys: Set[int]) -> list[HistoryStep]:
    redriven = {each for key in keys for each in redrives.redriven_keys_of(conn, key)}
    return [each for each in history.steps(conn, keys | redriven) if each.group == group.name]


def _left_elsewhere(conn: Connection, letters: Sequence[DeadLetterRow], message_id: str) -> MessageNotFound:
    of = groups.groups_by_id(conn, {each.group_id for each in letters}).values()
    names = ", ".join(sorted(f"'{each.group.name}'" for each in of if not each.is_deleted)) or "a deleted group"
    return MessageNotFound(
        f"message '{read.short(message_id)}' was removed by its age or with its topic; it is left as a dead letter of:"
        f" {names}"
    )


def _of_removed(conn: Connection, group: Group, own: DeadLetterRow) -> tuple[MessageFacts, list[HistoryStep]]:
    """The facts about a message that was removed; the group's dead letter of it is left."""
    back = _redriven(conn, group, own.origin_key)
    found = MessageFacts(group, State.DLQ, death=_death(conn, group, own.origin_key))
    if back is not None:
        found = _sent_back(conn, group, own.origin_key, back)
    return found, _steps(conn, group, {own.origin_key})


def _copies(conn: Connection, group: Group, key: int) -> list[RetryMessage]:
    """The retry messages that replaced the message; none if a reset has made the group read it again."""
    copies = copies_of(conn, group, key)
    at = _at(conn, group, key)
    if not copies or at is None or offset_of(key) < at.next_offset:
        return copies
    # The newest copy of the message itself: a new chain of retries starts with it.
    failures = min(each.lineage.failures for each in copies)
    own = [each for each in copies if each.lineage.failures == failures][-1]
    return [] if own.lineage.resets < at.resets else copies


def _first_key(conn: Connection, group: Group, key: int) -> int:
    """A message's first key: that of its origin for a redriven message or a retry message."""
    now = redrives.origins_of(conn, [key]).get(key)
    return first_key_of(conn, group, key) if now is None else now.origin_key


def _redriven(conn: Connection, group: Group, origin_key: int) -> RedrivenFacts | None:
    """Its last redrive, unless it has died again or was reset since."""
    letter = dead_letters.of_message(conn, group.group_id, origin_key)
    if letter is None or letter.redrive_state != LetterState.REDRIVEN:
        return None
    sent = redrives.of_letter(conn, letter)
    if sent is None:
        return None
    target_id = sent.target_topic_id
    target = None if target_id is None else topics.names_by_id(conn, [target_id]).get(target_id)
    return RedrivenFacts(sent.plan_id, sent.redriven_at_ms, None if target is None else target.name)


def _sent_back(conn: Connection, group: Group, origin_key: int, back: RedrivenFacts) -> MessageFacts:
    """The facts about a message that was redriven in mode POP: it has its own delivery, or is done."""
    at = delivered.redriven_to(conn, group, origin_key)
    hold = None if at is None else _hold(conn, holds.of_message(conn, group.group_id, at))
    return MessageFacts(group, states_of.state_of(conn, group.group_id, origin_key), hold=hold, redriven=back)


def of_stored(conn: Connection, group: Group, key: int) -> MessageFacts:
    """The facts about a message that is in a queue."""
    at = _at(conn, group, key)
    names = by_key.heads(conn, [key])[key]
    first_key = first_key_of(conn, group, key)
    death = _death(conn, group, first_key)
    hold = _hold(conn, holds.of_message(conn, group.group_id, key))
    state = states_of.state_of(conn, group.group_id, key, first_key)
    pause = _pause(conn, group, names.topic_id, names.message_group)
    is_lite, lite_topic = names.message_type == MessageType.LITE, names.message_group or ""
    found = MessageFacts(
        group, state, hold=hold, death=death, message_group=names.message_group, pause=pause, is_lite=is_lite
    )
    first_of_lite_topic = lite_topics.first_key(conn, names.topic_id, lite_topic) if is_lite else None
    if is_lite and group.mode is not Mode.PULL and names.copy_of is None and hold is None and death is None:
        found = found._replace(is_expired=first_of_lite_topic is None or key < first_of_lite_topic)
    if at is None or found.is_expired:
        # A group that owns whole queues may have no committed offset yet.
        return found
    ahead = head = None
    if state is State.READY and hold is None and offset_of(key) >= at.next_offset:
        ahead = offset_of(key) - max(at.next_offset, at.min_offset)
    if names.message_group is not None:
        head = _hold(conn, holds.head_of_group(conn, group.group_id, names.topic_id, names.message_group, key))
    found = found._replace(ahead=ahead, head=head)
    if not (is_lite and group.chooses):
        return found
    if state is State.READY and hold is None:
        first = first_of_lite_topic or 0
        found = found._replace(ahead=_ahead_in_lite_topic(conn, group, key, lite_topic, at, first))
    subscribers = clients_of(conn, group.group_id, names.topic_id, lite_topic)
    return found._replace(subscribers=SubscriberFacts(len(subscribers), tuple(subscribers[:SUBSCRIBERS_MAX])))


def _ahead_in_lite_topic(conn: Connection, group: Group, key: int, name: str, at: _AtRow, first_key: int) -> int:
    """How many messages of the lite topic, from this key on, the group reads before this one, up to 1,000."""
    position = positions.next_offset(conn, group.group_id, queue_of(key), name)
    first = message_key(queue_of(key), max(at.next_offset if position is None else position, at.min_offset))
    return parts.count(conn, max(first, first_key), key, name, AHEAD_MAX)


def _pause(conn: Connection, group: Group, topic_id: int, message_group: str | None) -> PauseFacts | None:
    found = pauses.pause_of_topic(conn, group.group_id, topic_id, message_group)
    return None if found is None else PauseFacts(found.topic, found.message_group, found.paused_at_ms, found.paused_by)


def _at(conn: Connection, group: Group, key: int) -> _AtRow | None:
    of_queue = REACHED.c.group_id == group.group_id, REACHED.c.queue_id == queue_of(key)
    at = select(REACHED.c.next_offset, REACHED.c.resets, STORED.c.min_offset)
    row = conn.execute(at.join(STORED, STORED.c.queue_id == REACHED.c.queue_id).where(*of_queue)).first()
    return None if row is None else _AtRow._make(row)


def _stuck(conn: Connection, group: Group, key: int, found: MessageFacts, times: Times) -> str | None:
    """Why the message, which the group is not done with, is never delivered to it; None if nothing keeps it back."""
    if found.state in (State.COMMIT, State.DLQ) or found.is_expired:
        return None
    topic_id = by_key.heads(conn, [key])[key].topic_id
    broken = broken_around(conn, group.group_id, topic_id, key, found.message_group, times)
    return None if broken is None else broken.symptom


def _hold(conn: Connection, row: DeliveryRow | None) -> HoldFacts | None:
    if row is None:
        return None
    head = by_key.head(conn, row.message_key)
    return None if head is None else HoldFacts(id_from_bytes(head.message_id), row)


def _death(conn: Connection, group: Group, key: int) -> DeathFacts | None:
    row = dead_letters.of_message(conn, group.group_id, key)
    return None if row is None or row.redrive_state else DeathFacts(row.dead_at_ms, row.attempt, row.reason)


def _scheduled(conn: Connection, topic_name: Resource | None, message_id: str) -> PendingFacts | None:
    row = pending_facts.find(conn, topic_name, id_to_bytes(message_id))
    if row is None:
        return None
    return PendingFacts(row.due_at_ms, row.kind == PendingKind.HALF, row.checks, row.pending_id)
