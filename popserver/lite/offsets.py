"""Where a group continues in a lite topic: a client may say so when it subscribes (protocol 8.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, Text, bindparam, case, func, insert, literal_column, select, update

from popserver.catalog import queue_offsets
from popserver.database.rows import encode_rows
from popserver.database.schema import IS_ORIGINAL, message, progress
from popserver.database.schema import message_group_progress as behind
from popserver.delivery import delivered, deliveries
from popserver.delivery.message_groups import MessageGroupKey, open_all, subscriber_of
from popserver.engine.transaction import Transaction
from popserver.messages.lite_topics import first_key
from popserver.model.group import Group
from popserver.model.topic import Topic, message_key, offset_of, queue_of_group


class OffsetPolicy(StrEnum):
    """LAST: where the group is; the others move it."""

    LAST = "LAST"
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


def move(tx: Transaction, group: Group, topic: Topic, lite_topics: Sequence[str], option: OffsetOption) -> None:
    """Move the group in these lite topics. Holds of their messages end. The caller has locked the progress rows."""
    if option.policy is OffsetPolicy.LAST:
        return
    for name in lite_topics:
        member = MessageGroupKey(topic.topic_id, queue_of_group(topic, name).queue_id, name)
        names = {"for_group": group.group_id, "of_topic": topic.topic_id, "of_queue": member.queue_id, "named": name}
        offset = _target(tx, member, names, option)
        if offset is None:
            continue
        rows = delivered.of_lite_topics(tx.conn, group.group_id, topic.topic_id, [name])
        deliveries.remove(tx.conn, [(group.group_id, row.message_key) for row in rows])
        if not tx.conn.execute(_MOVE, names | {"to_offset": offset}).rowcount:
            tx.conn.execute(_PLACE, names | {"to_offset": offset})
        open_all(tx, group, encode_rows([(group.group_id, member.queue_id, topic.topic_id, name)]), ())


def _target(tx: Transaction, member: MessageGroupKey, names: dict[str, Any], option: OffsetOption) -> int | None:
    """The offset to move to; None if the group does not move. Messages of an expired lite topic never come again."""
    begin_key = first_key(tx.conn, member.topic_id, member.message_group)
    ends = queue_offsets.ends(tx.conn, [member.queue_id]).get(member.queue_id)
    if begin_key is None or ends is None:
        return None
    end_offset = ends.end_offset
    first_offset = offset_of(begin_key)
    bounds = {"first": begin_key, "end": message_key(member.queue_id + 1, 0)}
    if option.policy is OffsetPolicy.MIN:
        return first_offset
    if option.policy is OffsetPolicy.MAX:
        return end_offset
    if option.policy is OffsetPolicy.OFFSET:
        return max(first_offset, min(option.number, end_offset))
    if option.policy is OffsetPolicy.TIMESTAMP:
        since = tx.conn.execute(_SINCE, names | bounds | {"since_ms": option.number}).scalar()
        return end_offset if since is None else offset_of(since)
    now = tx.conn.execute(_NOW, names).scalar()
    if now is None or option.number <= 0:
        return None
    bounds["end"] = message_key(member.queue_id, now)
    back = tx.conn.execute(_BACK, names | bounds | {"limit": option.number}).scalar()
    return None if back is None else offset_of(back)


_OF_LITE_TOPIC = (
    IS_ORIGINAL,
    message.c.message_group == bindparam("named"),
    message.c.message_key >= bindparam("first"),
    message.c.message_key < bindparam("end"),
)
_SINCE = select(func.min(message.c.message_key)).where(*_OF_LITE_TOPIC, message.c.stored_at_ms >= bindparam("since_ms"))
_last = select(message.c.message_key).where(*_OF_LITE_TOPIC).order_by(message.c.message_key.desc())
_BACK = select(func.min(_last.limit(bindparam("limit")).subquery("last").c.message_key))
_HERE = behind.c.group_id == bindparam("for_group"), behind.c.queue_id == bindparam("of_queue")
_IS_IT = (*_HERE, behind.c.message_group == bindparam("named"))
# Where the group is in a lite topic: at its own position, or, without one, at the scan's.
_POSITION = select(behind.c.next_offset).where(*_IS_IT).limit(literal_column("1")).scalar_subquery()
_NOW = select(case((_POSITION.is_not(None), _POSITION), else_=progress.c.next_offset)).where(
    progress.c.group_id == bindparam("for_group"), progress.c.queue_id == bindparam("of_queue")
)
_MOVE = update(behind).where(*_IS_IT).values(next_offset=bindparam("to_offset"), is_single=0)

_GROUP_ID, _TOPIC_ID = bindparam("for_group", type_=BigInteger), bindparam("of_topic", type_=BigInteger)
_NAMED = bindparam("named", type_=Text)
_PLACE = insert(behind).from_select(
    ["group_id", "queue_id", "message_group", "topic_id", "next_offset", "subscriber"],
    select(
        _GROUP_ID,
        bindparam("of_queue", type_=BigInteger),
        _NAMED,
        _TOPIC_ID,
        bindparam("to_offset", type_=BigInteger),
        subscriber_of(_GROUP_ID, _TOPIC_ID, _NAMED),
    ),
)
