"""Pause and resume: an operator stops the deliveries to a group, in all topics, in one, or for one message group.

Holds stay as they are, and can be acked. A paused message group has a position that is never open, as long as the pause
lasts (`delivery.advance`). So no receive takes its messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from popserver.catalog import groups, lookup, pauses, progress
from popserver.catalog.pauses import EVERY_TOPIC, WHOLE, PauseKey
from popserver.catalog.progress import GroupQueueKey, locks_of
from popserver.database.notifications import PAUSES, Invalidation
from popserver.delivery.advance import advance_members, block_paused
from popserver.engine.transaction import Locks, Phase, Request, Transaction, carries_out_each
from popserver.fifo.positions import MessageGroupKey
from popserver.model.errors import BadRequest, PopError
from popserver.model.group import Group
from popserver.model.topic import Topic, queue_of_group


@dataclass(frozen=True, slots=True)
class SetPause(Request[None]):
    """Pause a group in these topics, or (none) in all; `message_group` None: not only one message group.

    `paused_by` None resumes the group. To pause or to resume twice changes nothing.
    """

    phase: ClassVar = Phase.PAUSE
    group: Group
    topics: Sequence[Topic]
    message_group: str | None
    paused_by: str | None

    @property
    def members(self) -> list[MessageGroupKey]:
        """The message group in each topic; empty for a pause of the whole group."""
        if self.message_group is None:
            return []
        return [
            MessageGroupKey(each.topic_id, queue_of_group(each, self.message_group).queue_id, self.message_group)
            for each in self.topics
        ]

    @property
    def topic_ids(self) -> list[int]:
        return [each.topic_id for each in self.topics] or [EVERY_TOPIC]

    def locks(self) -> Iterable[Locks]:
        return locks_of(GroupQueueKey(self.group.group_id, each.queue_id) for each in self.members)


@carries_out_each(SetPause)
def set_pause(tx: Transaction, request: SetPause) -> PopError | None:
    """Store or remove the pauses of each request."""
    group = request.group
    found = groups.groups_by_id(tx.conn, [group.group_id]).get(group.group_id)
    if found is None or found.is_deleted:
        return lookup.group_not_found(group.name)
    queues = {each.topic_id: each for each in request.members}
    for member in request.members:
        if progress.next_offset(tx.conn, group.group_id, member.queue_id) is None:
            return _unread(request, member.topic_id)
    changed = False
    message_group = WHOLE if request.message_group is None else request.message_group
    for topic_id in request.topic_ids:
        key = PauseKey(group.group_id, topic_id, message_group)
        if pauses.is_paused(tx.conn, key) == (request.paused_by is not None):
            continue
        changed = True
        if request.paused_by is None:
            pauses.end(tx.conn, key)
            continue
        one = queues.get(topic_id)
        pauses.add(tx.conn, key, None if one is None else one.queue_id, tx.now_ms, request.paused_by)
        if one is not None:
            block_paused(tx, group.group_id, [one])
    if changed:
        tx.invalidate(Invalidation(PAUSES, *group.name))
        if request.paused_by is None:
            advance_members(tx, group, request.members)
    return None


def _unread(request: SetPause, topic_id: int) -> BadRequest:
    name = next(each.name for each in request.topics if each.topic_id == topic_id)
    return BadRequest(
        f"consumer group '{request.group.name}' has not received from topic '{name}' yet, so no message group of it can"
        " be paused; pause the group in the topic instead: leave out the message group"
    )
