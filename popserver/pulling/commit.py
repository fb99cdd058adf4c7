"""The progress of groups that own whole queues: the offsets that their members commit.

Progress only grows: a smaller offset comes from a late commit and changes nothing. Only an operator moves progress
back, which increments `resets`; a commit with an older count was made before that, and is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from sqlalchemy import Connection

from popserver.catalog import groups as catalog_groups
from popserver.catalog import progress, queue_offsets
from popserver.catalog.lookup import CATALOG_LOCK, group_not_found, of_another_mode, topic_not_found
from popserver.catalog.progress import GroupQueueKey, locks_of
from popserver.catalog.queue_offsets import Ends
from popserver.engine.transaction import Locks, Phase, Request, Transaction, carries_out
from popserver.model.errors import IllegalOffset, PopError, TooLate
from popserver.model.group import Group, Mode
from popserver.model.topic import MessageQueue
from popserver.pulling.rules import NO_PROGRESS, Committed, QueueOffset, QueueProgress


@dataclass(frozen=True, slots=True)
class Commit(Request[list[Committed]]):
    """Offsets that a member has consumed up to. The first accepted commit sets the group's mode.

    With `begins` it sets the offset where the group begins; existing progress stays.
    """

    phase: ClassVar = Phase.COMMIT_OFFSETS
    group: Group
    offsets: Sequence[QueueOffset]
    begins: bool = False

    def progress_keys(self) -> Iterator[GroupQueueKey]:
        return (GroupQueueKey(self.group.group_id, each.queue.queue_id) for each in self.offsets)

    def locks(self) -> Iterable[Locks]:
        locks = locks_of(self.progress_keys())
        return locks if self.group.mode is not None else (*locks, CATALOG_LOCK)


@carries_out(Commit)
def commit(tx: Transaction, requests: Sequence[Commit]) -> list[list[Committed] | PopError]:
    """Let progress grow. Each offset has its own outcome. A group that consumes message by message is refused."""
    denied = refusals(tx.conn, {each.group for each in requests})
    good = [each for each in requests if each.group not in denied]
    keys = sorted({key for each in good for key in each.progress_keys()})
    # Rows that were inserted after the transaction locked its keys are locked too.
    before = {key: QueueProgress(*each) for key, each in progress.lock_reading(tx, keys).items()}
    # After the lock, so that the ends include all messages that the members have seen.
    ends = queue_offsets.ends(tx.conn, {key.queue_id for key in keys})
    now = dict(before)
    judged = [
        [
            (key, _judge(offset, key, now, ends, begins=each.begins))
            for offset, key in zip(each.offsets, each.progress_keys(), strict=True)
        ]
        for each in good
    ]
    _write(tx, before, now)
    accepted = {each.group for pairs, each in zip(judged, good, strict=True) if any(why is None for _, why in pairs)}
    catalog_groups.set_modes(tx, accepted, Mode.PULL)
    outcomes = iter([Committed(why, now.get(key, NO_PROGRESS)) for key, why in pairs] for pairs in judged)
    return [denied[each.group] if each.group in denied else next(outcomes) for each in requests]


def fetch(conn: Connection, group: Group, queues: Sequence[MessageQueue]) -> list[QueueProgress]:
    """The group's progress in each queue. Raises a `PopError` if there is no such group, or it consumes by message."""
    for refusal in refusals(conn, {group}).values():
        raise refusal
    read = progress.of_queues(conn, group.group_id, (each.queue_id for each in queues))
    return [QueueProgress(*read[each.queue_id]) if each.queue_id in read else NO_PROGRESS for each in queues]


def refusals(conn: Connection, groups: Collection[Group]) -> dict[Group, PopError]:
    """The groups without such progress, and why: they do not exist, or they consume message by message."""
    modes = catalog_groups.modes(conn, {each.group_id for each in groups})
    gone = {each: group_not_found(each.name) for each in groups if each.group_id not in modes}
    popping = [each for each in groups if modes.get(each.group_id) == Mode.POP]
    return gone | {each: of_another_mode(each.name, Mode.POP) for each in popping}


def _judge(
    request: QueueOffset,
    key: GroupQueueKey,
    now: dict[GroupQueueKey, QueueProgress],
    ends: dict[int, Ends],
    *,
    begins: bool,
) -> PopError | None:
    """Move `now` to the offset, or return why the offset is refused."""
    stored = now.get(key, NO_PROGRESS)
    if key.queue_id not in ends:
        return topic_not_found(request.topic.name)
    end_offset = ends[key.queue_id].end_offset
    named = f"queue {request.queue.number} of topic '{request.topic.name}'"
    if not 0 <= request.offset <= end_offset:
        return IllegalOffset(
            f"offset {request.offset} is not in {named}, which ends at {end_offset}; commit 0 to that end"
        )
    if request.resets is not None and request.resets < stored.resets:
        return TooLate(
            f"offset {request.offset} of {named} was read after reset {request.resets}, but reset {stored.resets} came"
            f" later; continue at {stored.offset}"
        )
    if request.offset > stored.offset and not (begins and key in now):
        now[key] = QueueProgress(request.offset, stored.resets)
    return None


def _write(
    tx: Transaction, before: dict[GroupQueueKey, QueueProgress], now: dict[GroupQueueKey, QueueProgress]
) -> None:
    moved = [key for key in sorted(now) if key in before and now[key] != before[key]]
    progress.grow(tx.conn, [(*key, now[key].offset) for key in moved])
    new = [key for key in sorted(now) if key not in before]
    progress.begin(tx.conn, [(*key, now[key].offset, now[key].resets) for key in new])
