"""Reset: an operator moves a group's progress, for all named queues in one transaction.

It removes the group's deliveries and message-group positions in these queues: from the new offset on all messages are
READY, and none before it. Older receipt handles are no longer valid, and commits with an older count of resets are
refused. The progress row is locked from the start, so no message is granted meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import Connection, text

from popserver.catalog import groups, lookup, pauses, progress, queue_offsets
from popserver.catalog.progress import GroupQueueKey, locks_of
from popserver.catalog.queue_offsets import Ends
from popserver.database.rows import RowStatement
from popserver.delivery import clear
from popserver.delivery.advance import block_paused
from popserver.delivery.clear import GroupInQueue
from popserver.delivery.history import Moved, as_moved, record
from popserver.engine.transaction import STEP_ROWS_MAX, Locks, Phase, Request, Transaction, carries_out_each
from popserver.fifo.positions import MessageGroupKey
from popserver.members import sql as members_sql
from popserver.messages import dead_letters, parts, seek
from popserver.model.errors import BadRequest, PopError, TooManyRequests
from popserver.model.group import Group, Mode
from popserver.model.states import Event, State, target
from popserver.model.topic import message_key, offset_of
from popserver.progress.rules import Edge, Goal, MovedOffset, Since, check_offset, events
from popserver.pulling.rules import NO_OFFSET

# A reset writes history rows for at most this many messages.
RECORDED_MAX = STEP_ROWS_MAX


@dataclass(frozen=True, slots=True)
class Reset(Request[list[MovedOffset]]):
    """Queues of one group, each once. With `not_of_pops` it is refused for a group of mode POP."""

    phase: ClassVar = Phase.RESET
    group: Group
    goals: Sequence[Goal]
    not_of_pops: bool = False

    def locks(self) -> Iterable[Locks]:
        return locks_of(GroupQueueKey(self.group.group_id, each.queue.queue_id) for each in self.goals)


class _StateRow(NamedTuple):
    message_key: int
    state: str
    attempt: int | None


class _Move(NamedTuple):
    """The move in one queue; `first` to `end` are all message keys that the queue can have."""

    goal: Goal
    first: int
    end: int
    from_offset: int
    to_offset: int


def plan(conn: Connection, request: Reset) -> list[MovedOffset]:
    """The moves that the reset would make now. Raises the `PopError` with which it would be refused."""
    return [_moved(each) for each in _moves(conn, request)]


def check(conn: Connection, goals: Sequence[Goal]) -> None:
    """Raise the `PopError` with which these goals are refused for any group."""
    _check_once(goals)
    ends = _ends(conn, goals)
    for goal in goals:
        _to_offset(conn, goal, ends)


@carries_out_each(Reset)
def reset(tx: Transaction, request: Reset) -> list[MovedOffset] | PopError:
    """Move progress. A request is done as a whole, or refused."""
    group = request.group
    try:
        moves = _moves(tx.conn, request)
        for move in moves:
            _lock_deliveries(tx, group, move)
    except PopError as refusal:
        return refusal
    _invalidate(tx, group, moves)
    for move in moves:
        _move(tx, group, move)
    begun = {each.goal.topic.topic_id for each in moves if each.from_offset == NO_OFFSET}
    groups.begin_elsewhere(tx, group, begun)
    members_sql.notify_reset(tx, group.name)
    return [_moved(each) for each in moves]


def _moves(conn: Connection, request: Reset) -> list[_Move]:
    """The old and new offset for each queue. Raises before anything is changed."""
    found = groups.groups_by_id(conn, [request.group.group_id]).get(request.group.group_id)
    if found is None or found.is_deleted:
        raise lookup.group_not_found(request.group.name)
    if request.not_of_pops and found.group.mode is Mode.POP:
        raise BadRequest(
            f"consumer group '{request.group.name}' consumes in mode POP, so offsets are only a part of its progress;"
            " move it with: popmq group reset"
        )
    _check_once(request.goals)
    ends = _ends(conn, request.goals)
    return [_planned(conn, request.group, goal, ends) for goal in request.goals]


def _check_once(goals: Iterable[Goal]) -> None:
    ((goal, count),) = Counter((each.topic.name, each.queue.number) for each in goals).most_common(1)
    if count > 1:
        raise BadRequest(f"queue {goal[1]} of topic '{goal[0]}' is named {count} times; name each queue once")


def _ends(conn: Connection, goals: Sequence[Goal]) -> dict[int, Ends]:
    """The ends by queue, without queues of deleted topics."""
    topic_ids = {goal.topic.topic_id for goal in goals}
    return {each.queue_id: each for topic_id in topic_ids for each in queue_offsets.ends_of_topic(conn, topic_id)}


def _planned(conn: Connection, group: Group, goal: Goal, ends: dict[int, Ends]) -> _Move:
    queue_id = goal.queue.queue_id
    stored = progress.next_offset(conn, group.group_id, queue_id)
    keys = message_key(queue_id, 0), message_key(queue_id + 1, 0)
    return _Move(goal, *keys, NO_OFFSET if stored is None else stored, _to_offset(conn, goal, ends))


def _to_offset(conn: Connection, goal: Goal, ends_by_queue: dict[int, Ends]) -> int:
    ends = ends_by_queue.get(goal.queue.queue_id)
    if ends is None:
        raise lookup.topic_not_found(goal.topic.name)
    if isinstance(goal.to, Since):
        return seek.offset_at(conn, goal.topic, goal.queue, goal.to.at_ms)
    if isinstance(goal.to, Edge):
        return ends.min_offset if goal.to is Edge.BEGINNING else ends.end_offset
    check_offset(goal, goal.to, ends.min_offset, ends.end_offset)
    return goal.to


def _moved(move: _Move) -> MovedOffset:
    return MovedOffset(move.goal.topic.name, move.goal.queue.number, move.from_offset, move.to_offset)


def _lock_deliveries(tx: Transaction, group: Group, move: _Move) -> None:
    """Lock the deliveries. Raise if a user's own transaction has locked one: it may ack it."""
    if not clear.lock(tx, _queue_of(group, move)):
        raise TooManyRequests(
            f"a delivery of group '{group.name}' in queue {move.goal.queue.number} of topic '{move.goal.topic.name}' is"
            " locked by another transaction; nothing is reset, repeat the request"
        )


def _invalidate(tx: Transaction, group: Group, moves: Sequence[_Move]) -> None:
    """Write the history of at most `RECORDED_MAX` messages, first of those with delivery rows."""
    if Event.RESET not in group.history.kept:
        return
    room = RECORDED_MAX
    for move in moves:
        held = clear.held(tx, _queue_of(group, move), room)
        # The first messages of the range are enough: `held` has all messages with a delivery, or there is no room left.
        # Without an end after them, Postgres would join the whole range before it takes the first ones.
        names = _range_names(group, move)
        end_key = parts.key_after(tx.conn, names["from_key"], names["to_key"], room)
        if end_key is not None:
            names["to_key"] = end_key
        of_range = _STATES.rows(tx.conn, names | {"limit": room - len(held)})
        _record(tx, group, move, [*map(as_moved, held), *map(_implied, of_range)])
        room -= len(held) + len(of_range)


def _range_names(group: Group, move: _Move) -> dict[str, Any]:
    return _bounds(move) | {"group_namespace": group.name.namespace, "consumer_group": group.name.name}


def _bounds(move: _Move) -> dict[str, int]:
    """The messages between the old and the new offset; none if there was no progress."""
    from_offset = move.to_offset if move.from_offset == NO_OFFSET else move.from_offset
    low, high = sorted((from_offset, move.to_offset))
    return {"from_key": move.first + low, "to_key": move.first + high}


def _implied(row: _StateRow) -> Moved:
    return Moved(row.message_key, State(row.state), row.attempt or 0, "")


def _record(tx: Transaction, group: Group, move: _Move, several: Iterable[Moved]) -> None:
    reason = f"an operator has moved the group from offset {move.from_offset} to {move.to_offset}"
    by_event: dict[Event, list[Moved]] = {Event.RESET: [], Event.SKIP: []}
    for each in several:
        state = each.from_state
        for event in events(state, offset_of(each.message_key), move.to_offset):
            by_event[event].append(each._replace(from_state=state))
            state = target(event)
    for event, moved in by_event.items():
        record(tx, group, event, moved, reason)


def _move(tx: Transaction, group: Group, move: _Move) -> None:
    """Remove the group's rows in the queue, except its progress and the dead letters before the new offset."""
    queue = _queue_of(group, move)
    clear.clear(tx, queue)
    dead_letters.reset(tx, queue.group_id, move.first + move.to_offset, queue.end)
    progress.reset(tx.conn, group.group_id, queue.queue_id, move.to_offset)
    paused = pauses.message_groups_in(tx.conn, group.group_id, queue.queue_id)
    block_paused(tx, group.group_id, [MessageGroupKey(topic_id, queue.queue_id, name) for topic_id, name in paused])
    tx.ready_topics.add(move.goal.topic.topic_id)


def _queue_of(group: Group, move: _Move) -> GroupInQueue:
    return GroupInQueue(group.group_id, move.goal.queue.queue_id, move.first, move.end)


# Messages without a delivery row.
_STATES = RowStatement(
    _StateRow,
    text("""
    SELECT message_key, state, attempt FROM message_state
    WHERE message_key >= :from_key AND message_key < :to_key
      AND group_namespace = :group_namespace AND consumer_group = :consumer_group AND visible_at_ms IS NULL
    ORDER BY message_key LIMIT :limit"""),
)
