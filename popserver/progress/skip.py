"""Skip: mark one message as consumed for a group without delivering it, so that messages behind it continue.

With `force` a held message is skipped too: its hold ends, as at a reset. The history has this event at every level,
because the refusal of the former holder's ack reads it (`settling.refusals`).

A skip removes the message's delivery (READY again, or waiting for a retry), or moves the position of its message group
or the group's progress past it. A message in the middle of unread messages has none of these, and is not skipped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from popserver.administration import message_facts
from popserver.administration.why import MessageFacts
from popserver.catalog import progress
from popserver.catalog.progress import GroupQueueKey, locks_of
from popserver.delivery import delivered, deliveries
from popserver.delivery.advance import advance_after_removal
from popserver.delivery.history import FORCED_SKIP, Moved, as_moved, record
from popserver.engine.transaction import Locks, Phase, Request, Transaction, carries_out_each
from popserver.fifo import moving_positions, positions
from popserver.fifo.positions import MessageGroupKey
from popserver.members import sql as members_sql
from popserver.messages import parts
from popserver.model.errors import PopError, TooManyRequests
from popserver.model.group import Group, Mode
from popserver.model.states import Event, State, sources
from popserver.model.topic import message_key, offset_of, queue_of

REASON = "an operator has skipped it"


class Skipped(NamedTuple):
    """Whether the message was skipped, and the facts about it before that."""

    is_done: bool
    found: MessageFacts


@dataclass(frozen=True, slots=True)
class Skip(Request[Skipped]):
    """Skip one message of a topic for one group; with `force` also a held one."""

    phase: ClassVar = Phase.SKIP
    group: Group
    topic_id: int
    message_key: int
    force: bool = False

    @property
    def queue_id(self) -> int:
        return queue_of(self.message_key)

    def locks(self) -> Iterable[Locks]:
        return locks_of([GroupQueueKey(self.group.group_id, self.queue_id)])


@carries_out_each(Skip)
def skip(tx: Transaction, request: Skip) -> Skipped | PopError:
    """READY or WAITING_RETRY → COMMIT, if a row can store it; with `force` also INFLIGHT. A refused request changes
    nothing. Refused with `TooManyRequests` for a held message that a user's own transaction has locked."""
    if (at := delivered.redriven_to(tx.conn, request.group, request.message_key)) is not None:
        request = replace(request, message_key=at)
    found = message_facts.of_stored(tx.conn, request.group, request.message_key)
    if request.force and found.state is State.INFLIGHT:
        return _end_hold(tx, request) or Skipped(True, found)
    if found.state not in sources(Event.SKIP):
        return Skipped(False, found)
    done = _skip_stored(tx, request) if found.hold is not None else _skip_unread(tx, request, found)
    if done:
        tx.ready_topics.add(request.topic_id)
    return Skipped(done, found)


def _skip_stored(tx: Transaction, request: Skip) -> bool:
    """Skip a message with a delivery, for which its message group may wait."""
    row = deliveries.skip(tx.conn, (request.group.group_id, request.message_key))
    if row is None:
        return False  # another server has just granted it
    record(tx, request.group, Event.SKIP, [as_moved(row)], REASON)
    if row.message_group is not None:
        advance_after_removal(tx, request.group, [MessageGroupKey(row.topic_id, request.queue_id, row.message_group)])
    return True


def _end_hold(tx: Transaction, request: Skip) -> PopError | None:
    """Skip a held message: INFLIGHT → READY → COMMIT."""
    row = deliveries.end_hold(tx, (request.group.group_id, request.message_key))
    if row is None:
        return TooManyRequests(
            f"the message is locked by another transaction, which may be about to ack it in group"
            f" '{request.group.name}'; nothing is skipped, repeat the request"
        )
    held = as_moved(row)
    record(tx, request.group, Event.RESET, [held], FORCED_SKIP, always=True)
    record(tx, request.group, Event.SKIP, [held._replace(from_state=State.READY)], FORCED_SKIP, always=True)
    if row.message_group is not None:
        advance_after_removal(tx, request.group, [MessageGroupKey(row.topic_id, request.queue_id, row.message_group)])
    tx.ready_topics.add(request.topic_id)
    return None


def _skip_unread(tx: Transaction, request: Skip, found: MessageFacts) -> bool:
    """Skip a message without a delivery. It must be the next message of its message group, if this has a position, and
    of the queue, if the group has not reached it yet."""
    progress_at = progress.next_offset(tx.conn, request.group.group_id, request.queue_id)
    assert progress_at is not None, "READY messages are in queues that the group reads"
    group_at = positions.next_offset(tx.conn, request.group.group_id, request.queue_id, found.message_group)
    is_unread = offset_of(request.message_key) >= progress_at
    if group_at is not None and not _is_first(tx, request, group_at, found.message_group):
        return False
    if is_unread and not _is_first(tx, request, progress_at):
        return False
    beyond = offset_of(request.message_key) + 1
    if group_at is not None and found.message_group is not None:
        moving_positions.move(tx.conn, [(request.group.group_id, request.queue_id, beyond, 1, found.message_group)])
    if is_unread:
        _move_progress(tx, request, beyond)
    record(tx, request.group, Event.SKIP, [Moved(request.message_key, State.READY, 0, "")], REASON)
    return True


def _is_first(tx: Transaction, request: Skip, from_offset: int, message_group: str | None = None) -> bool:
    """Whether this message is the first one from that offset on, of its message group or (None) of any."""
    first, end = message_key(request.queue_id, from_offset), request.message_key + 1
    return parts.first_key(tx.conn, first, end, message_group=message_group) == request.message_key


def _move_progress(tx: Transaction, request: Skip, beyond: int) -> None:
    """Move the progress. Notify the members of a group that owns whole queues: one may be stuck at the message."""
    has_members = request.group.mode is Mode.PULL
    progress.skip_to(tx.conn, request.group.group_id, request.queue_id, beyond, is_reset=has_members)
    if has_members:
        members_sql.notify_reset(tx, request.group.name)
