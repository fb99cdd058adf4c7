"""The offset option of a subscription: a client moves its group in a lite topic when it subscribes (protocol 8.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from popserver.catalog import progress, queue_offsets
from popserver.delivery import delivered, deliveries
from popserver.delivery.advance import open_all
from popserver.engine.transaction import Transaction
from popserver.fifo import moving_positions, positions
from popserver.fifo.moving_positions import encode_members
from popserver.fifo.positions import MessageGroupKey
from popserver.messages import parts
from popserver.messages.lite_topics import first_key
from popserver.model.errors import TooManyRequests
from popserver.model.group import Group
from popserver.model.topic import Topic, message_key, offset_of, queue_of_group


class OffsetPolicy(StrEnum):
    """How the group moves in a lite topic."""

    LAST = "LAST"  # it does not move
    MIN = "MIN"  # to the first message
    MAX = "MAX"  # after the last one
    OFFSET = "OFFSET"  # to the message with this offset in the queue
    TAIL = "TAIL"  # so many messages back
    TIMESTAMP = "TIMESTAMP"  # to the first message that was stored then (epoch ms) or later


@dataclass(frozen=True, slots=True)
class OffsetOption:
    """A policy, and its number if it has one."""

    policy: OffsetPolicy
    number: int = 0


def lock(tx: Transaction, group: Group, topic: Topic, lite_topics: Sequence[str]) -> TooManyRequests | None:
    """Lock the deliveries of these lite topics. Refuse if a user's own transaction has locked one: it may ack it.

    The lock of the progress is not enough for `move`, because a user's transaction does not take it.
    """
    rows = delivered.of_lite_topics(tx.conn, group.group_id, topic.topic_id, lite_topics)
    free = set(delivered.lock(tx, group.group_id, [row.message_key for row in rows]))
    taken = next((row for row in rows if row.message_key not in free), None)
    return taken and TooManyRequests(
        f"a delivery of group '{group.name}' in lite topic '{taken.message_group}' of topic '{topic.name}' is locked by"
        " another transaction; nothing is moved, repeat the request"
    )


def move(tx: Transaction, group: Group, topic: Topic, lite_topics: Sequence[str], option: OffsetOption) -> None:
    """Move the group in these lite topics, and end the holds of their messages.

    The caller has locked the progress, and the deliveries by `lock`.
    """
    for name in lite_topics:
        member = MessageGroupKey(topic.topic_id, queue_of_group(topic, name).queue_id, name)
        offset = _target(tx, group, member, option)
        if offset is None:
            continue
        rows = delivered.of_lite_topics(tx.conn, group.group_id, topic.topic_id, [name])
        deliveries.remove(tx.conn, [(group.group_id, row.message_key) for row in rows])
        if not moving_positions.move(tx.conn, [(group.group_id, member.queue_id, offset, 1, name)]):
            moving_positions.add_at(tx.conn, group.group_id, topic.topic_id, [(member.queue_id, offset, name)])
        open_all(tx, group, encode_members(group.group_id, [member]), ())


def _target(tx: Transaction, group: Group, member: MessageGroupKey, option: OffsetOption) -> int | None:
    """The offset to move to; None if the group does not move. It never goes back into an expired lite topic."""
    begin_key = first_key(tx.conn, member.topic_id, member.message_group)
    ends = queue_offsets.ends(tx.conn, [member.queue_id]).get(member.queue_id)
    if begin_key is None or ends is None:
        return None
    end_offset = ends.end_offset
    first_offset = offset_of(begin_key)
    if option.policy is OffsetPolicy.MIN:
        return first_offset
    if option.policy is OffsetPolicy.MAX:
        return end_offset
    if option.policy is OffsetPolicy.OFFSET:
        return max(first_offset, min(option.number, end_offset))
    if option.policy is OffsetPolicy.TIMESTAMP:
        end = message_key(member.queue_id + 1, 0)
        since = parts.first_key_since(tx.conn, begin_key, end, member.message_group, option.number)
        return end_offset if since is None else offset_of(since)
    # Back from the lite topic's position, or, without one, from the scan's offset.
    now = positions.next_offset(tx.conn, group.group_id, member.queue_id, member.message_group)
    if now is None:
        now = progress.next_offset(tx.conn, group.group_id, member.queue_id)
    if now is None or option.number <= 0:
        return None
    end = message_key(member.queue_id, now)
    back = parts.first_key_of_last(tx.conn, begin_key, end, member.message_group, option.number)
    return None if back is None else offset_of(back)
