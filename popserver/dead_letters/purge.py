"""Purges dead letters: removes them with their copies. The queue of copies gets gaps, and may begin at a later offset.

Dead letters stay if a group holds their copy, or if they were redriven and have not ended yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sqlalchemy import select

from popserver.catalog import groups, progress, queue_offsets, topics
from popserver.delivery import delivered, deliveries
from popserver.engine.transaction import Phase, Request, Transaction, carries_out_each
from popserver.messages import dead_letters, parts, redrives, stored
from popserver.messages.dead_letters import DeadLetterRow
from popserver.messages.stored import lock_queue
from popserver.model.errors import PopError, TooManyRequests
from popserver.model.group import Group, Mode
from popserver.model.names import dead_letter_topic
from popserver.model.states import LetterState
from popserver.model.topic import message_key, offset_of, queue_of


@dataclass(frozen=True, slots=True)
class PurgeLetters(Request[int]):
    """Remove dead letters of one group by id; at most one step of them."""

    phase: ClassVar = Phase.PURGE_DEAD_LETTERS
    group: Group
    ids: Sequence[int]


@carries_out_each(PurgeLetters)
def purge_letters(tx: Transaction, request: PurgeLetters) -> int | PopError:
    """Remove dead letters. Returns how many. Refused with `TooManyRequests` while another server uses their queue."""
    group = request.group
    topic = topics.find_topic(tx.conn, dead_letter_topic(group.name))
    if topic is None or not request.ids:
        return 0
    (queue,) = topic.queues
    if lock_queue(tx, queue.queue_id) is None:
        return TooManyRequests(f"another server uses the dead letters of group '{group.name}'; repeat the request")
    locked = dead_letters.lock(tx, group.group_id, request.ids)
    unfinished = _unfinished(tx, group, locked)
    letters = {row.copy_key: row.dead_letter_id for row in locked if row.dead_letter_id not in unfinished}
    purged = _not_held(tx, sorted(letters))
    if not purged:
        return 0
    ids = [letters[key] for key in purged]
    redrives.note_purged(tx, ids)
    dead_letters.remove(tx, ids)
    stored.remove(tx, purged)
    first = parts.first_key(tx.conn, message_key(queue.queue_id, 0), message_key(queue.queue_id + 1, 0))
    queue_offsets.begin_at(tx.conn, queue.queue_id, None if first is None else offset_of(first))
    return len(purged)


def _unfinished(tx: Transaction, group: Group, letters: Sequence[DeadLetterRow]) -> set[int]:
    """The ids of the dead letters that were redriven to the group and have not ended there."""
    redriven = [each for each in letters if each.redrive_state == LetterState.REDRIVEN]
    key_of = {
        each.dead_letter_id: each.redriven_key
        for each in redrives.of_letters(tx.conn, redriven)
        if each.target_topic_id is None
    }
    if not key_of:
        return set()
    busy: set[int] = set()
    if group.mode is Mode.PULL:
        # The progress is read before the deliveries: a message that is sent back first gets a delivery, and then the
        # progress passes it.
        read = progress.of_queues(tx.conn, group.group_id, map(queue_of, key_of.values()))
        read_to = {queue_id: each.next_offset for queue_id, each in read.items()}
        busy = {key for key in key_of.values() if offset_of(key) >= read_to.get(queue_of(key), 0)}
    busy |= delivered.among(tx.conn, group.group_id, key_of.values())
    return {dead_letter_id for dead_letter_id, key in key_of.items() if key in busy}


def _not_held(tx: Transaction, keys: Sequence[int]) -> list[int]:
    """The keys that no group holds. It removes their deliveries that are READY again."""
    if not keys:
        return []
    held: set[int] = set()
    ready: list[tuple[int, int]] = []
    for group_id in tx.conn.execute(_GROUPS_THERE, {"first": keys[0], "end": keys[-1] + 1}).scalars().all():
        free = delivered.lock_ready_among(tx, group_id, keys)
        held |= delivered.among(tx.conn, group_id, keys) - free
        ready += [(group_id, key) for key in sorted(free)]
    deliveries.remove(tx.conn, [each for each in ready if each[1] not in held])
    return [key for key in keys if key not in held]


_GROUPS_THERE = select(groups.EVERY.c.group_id).where(delivered.first_inside(groups.EVERY.c.group_id).is_not(None))
