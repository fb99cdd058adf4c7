"""Unsubscribe: an operator removes a group from a topic. The group's progress, its holds and its retries there end.

The group's dead letters stay. If a consumer of the group uses the topic again, the group begins as in a topic that it
has never read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from popserver.catalog import groups, lookup, pauses, progress
from popserver.catalog.progress import GroupQueueKey, locks_of
from popserver.database.notifications import PAUSES, SUBSCRIPTIONS, Invalidation
from popserver.delivery import clear, delivered
from popserver.delivery.clear import GroupInQueue
from popserver.delivery.deliveries import DeliveryRow
from popserver.engine.transaction import Locks, Phase, Request, Transaction, carries_out_each
from popserver.members import sql as members_sql
from popserver.model.errors import BadRequest, NotFound, PopError, TooManyRequests
from popserver.model.group import Group
from popserver.model.times import moment
from popserver.model.topic import Topic, message_key


@dataclass(frozen=True, slots=True)
class Unsubscribe(Request[None]):
    """Remove the group from the topic; unless `ends_holds` only if it holds no message there."""

    phase: ClassVar = Phase.RESET
    group: Group
    topic: Topic
    ends_holds: bool

    def locks(self) -> Iterable[Locks]:
        return locks_of(GroupQueueKey(self.group.group_id, each.queue_id) for each in self.topic.queues)


@carries_out_each(Unsubscribe)
def unsubscribe(tx: Transaction, request: Unsubscribe) -> PopError | None:
    """Each request is done as a whole, or refused."""
    group, topic = request.group, request.topic
    known = groups.groups_by_id(tx.conn, [group.group_id]).get(group.group_id)
    if known is None or known.is_deleted:
        return lookup.group_not_found(group.name)
    queue_ids = progress.of_queues(tx.conn, group.group_id, (each.queue_id for each in topic.queues))
    if not queue_ids:
        return not_subscribed(group, topic)
    queues = [GroupInQueue(group.group_id, each, message_key(each, 0), message_key(each + 1, 0)) for each in queue_ids]
    if not all(clear.lock(tx, each) for each in queues):
        return TooManyRequests(
            f"a delivery of group '{group.name}' in topic '{topic.name}' is locked by another transaction; nothing is"
            " deleted, repeat the request"
        )
    if not request.ends_holds:
        hold = delivered.held_in_topic(tx.conn, group.group_id, topic.topic_id, tx.now_ms)
        if hold is not None:
            return _held_elsewhere(tx, request, hold)
    for each in queues:
        clear.clear(tx, each)
    progress.end(tx.conn, group.group_id, queue_ids)
    if pauses.end_all(tx.conn, group.group_id, topic.topic_id):
        tx.invalidate(Invalidation(PAUSES, *group.name))
    tx.invalidate(Invalidation(SUBSCRIPTIONS, *group.name))
    members_sql.notify_reset(tx, group.name)
    return None


def _held_elsewhere(tx: Transaction, request: Unsubscribe, hold: DeliveryRow) -> BadRequest:
    until = moment(hold.visible_at_ms, tx.now_ms)
    return BadRequest(
        f"client '{hold.client_id}' holds a message of topic '{request.topic.name}' for consumer group"
        f" '{request.group.name}' until {until}, and may be connected to another server; stop the group's consumers,"
        " wait until their holds have ended, or end them with popmq group reset, and repeat the request"
    )


def not_subscribed(group: Group, topic: Topic) -> NotFound:
    return NotFound(f"consumer group '{group.name}' does not consume topic '{topic.name}'; there is nothing to delete")
