"""Expiry: a lite topic ends a while after its last message, or when retention has removed its last one.

Its messages count as consumed then, in every group. A lite topic of which a message is held or waits for a retry stays,
and so does one that an operator has paused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Text,
    and_,
    bindparam,
    delete,
    func,
    or_,
    select,
    tuple_,
    update,
)

from popserver.catalog import pauses
from popserver.database.newest import group_of
from popserver.database.rows import RowQuery, encode_rows, rows_parameter
from popserver.database.schema import (
    IS_ORIGINAL,
    KEY_SHIFT,
    delivery,
    in_states,
    lite_topic,
    message,
    queue,
)
from popserver.database.schema import message_group_progress as behind
from popserver.database.schema import topic as topic_table
from popserver.engine.transaction import STEP_ROWS_MAX, Phase, Request, Transaction, carries_out
from popserver.messages.append import lock_queue
from popserver.model.states import TIMED
from popserver.model.topic import queue_of

# A lite topic without messages stays so long: its first one may have been removed a moment after it was stored.
_YOUNG_MS = 60_000


class ExpiringLiteTopic(NamedTuple):
    """A lite topic that nobody has sent to for a while."""

    topic_id: int
    first_key: int
    name: str


@dataclass(frozen=True, slots=True)
class ExpireLite(Request[int]):
    """Remove those of these lite topics that have expired. The result is their number."""

    phase: ClassVar = Phase.EXPIRE_LITE
    lite_topics: Sequence[ExpiringLiteTopic]


@carries_out(ExpireLite)
def expire(tx: Transaction, requests: Sequence[ExpireLite]) -> list[int]:
    """One step; lite topics in queues that another server uses stay until the next look."""
    return [_expire(tx, request.lite_topics) for request in requests]


def expiring(conn: Connection, now_ms: int, after: tuple[int, str] = (0, "")) -> list[ExpiringLiteTopic]:
    """The next 1,000 lite topics at most that have expired, after this topic id and name."""
    names = {"now_ms": now_ms, "after_topic": after[0], "after_name": after[1], "limit": STEP_ROWS_MAX}
    return _EXPIRING.rows(conn, names)


def has_lite_topics(conn: Connection) -> bool:
    """Whether any topic has a lite topic."""
    return conn.execute(select(lite_topic.c.name).limit(1)).first() is not None


def _expire(tx: Transaction, lite_topics: Iterable[ExpiringLiteTopic]) -> int:
    by_queue: dict[int, list[ExpiringLiteTopic]] = {}
    for each in lite_topics:
        by_queue.setdefault(queue_of(each.first_key), []).append(each)
    return sum(_expire_in_queue(tx, queue_id, of_queue) for queue_id, of_queue in sorted(by_queue.items()))


def _expire_in_queue(tx: Transaction, queue_id: int, lite_topics: Sequence[ExpiringLiteTopic]) -> int:
    topic_id = lite_topics[0].topic_id
    # Without waiting, as for the queue: a send that creates lite topics locks the topic, and then waits for the queue.
    if tx.conn.execute(_LOCK_TOPIC, {"of_topic": topic_id}).first() is None:
        return 0
    groups = lock_queue(tx, queue_id)
    if groups is None:
        return 0
    named = _names(each.name for each in lite_topics)
    # Somebody may have sent to them since they were found.
    still = set(tx.conn.execute(_STILL, {"of_topic": topic_id, "names": named, "now_ms": tx.now_ms}).scalars())
    of_topic = {"of_topic": topic_id, "groups": encode_rows([(each,) for each in groups])}
    still -= set(tx.conn.execute(_HELD, {**of_topic, "names": _names(still)}).scalars())
    still -= pauses.paused_among(tx.conn, topic_id, still)
    if not still:
        return 0
    names = {**of_topic, "of_queue": queue_id, "names": _names(still)}
    tx.conn.execute(_END_READY, names)
    tx.conn.execute(_END_POSITIONS, names)
    removed = tx.conn.execute(_END, names).rowcount
    tx.conn.execute(_MOVE_EXPIRED, names)
    tx.conn.execute(_COUNT, {"of_topic": topic_id, "removed": removed})
    return removed


def _names(names: Collection[str] | Iterable[str]) -> str:
    return encode_rows([(each,) for each in sorted(names)])


_LOCK_TOPIC = (
    select(topic_table.c.topic_id)
    .where(topic_table.c.topic_id == bindparam("of_topic"))
    .with_for_update(skip_locked=True)
)
_NEWEST_MS = (
    select(message.c.stored_at_ms)
    .where(
        IS_ORIGINAL,
        message.c.message_group == lite_topic.c.name,
        message.c.message_key >= lite_topic.c.first_key,
        message.c.message_key < (lite_topic.c.first_key.op(">>")(KEY_SHIFT) + 1).op("<<")(KEY_SHIFT),
    )
    .order_by(message.c.message_key.desc())
    .limit(1)
    .correlate(lite_topic)
    .scalar_subquery()
)
_IS_OLD: ColumnElement[bool] = and_(
    topic_table.c.topic_id == lite_topic.c.topic_id,
    topic_table.c.deleted_at_ms.is_(None),
    lite_topic.c.created_at_ms < bindparam("now_ms") - _YOUNG_MS,
    or_(
        # Written so that without a life of lite topics only those without messages are old.
        func.coalesce(_NEWEST_MS, 0) == 0,
        func.coalesce(_NEWEST_MS, 0) < bindparam("now_ms") - topic_table.c.lite_expires_ms,
    ),
)
_EXPIRING = RowQuery(
    ExpiringLiteTopic,
    select(lite_topic.c.topic_id, lite_topic.c.first_key, lite_topic.c.name)
    .select_from(lite_topic)
    .join(topic_table, topic_table.c.topic_id == lite_topic.c.topic_id)
    .where(
        _IS_OLD,
        tuple_(lite_topic.c.topic_id, lite_topic.c.name)
        > tuple_(bindparam("after_topic", type_=BigInteger), bindparam("after_name", type_=Text)),
    )
    .order_by(lite_topic.c.topic_id, lite_topic.c.name)
    .limit(bindparam("limit")),
)
_NAMED = rows_parameter("names", text=("name",))
_STILL = (
    select(lite_topic.c.name)
    .select_from(lite_topic)
    .join(topic_table, topic_table.c.topic_id == lite_topic.c.topic_id)
    .where(lite_topic.c.topic_id == bindparam("of_topic"), lite_topic.c.name.in_(select(_NAMED.c.name)), _IS_OLD)
)
_GROUPS = rows_parameter("groups", "group_id")
# By rows of group and name, which is how the index of message groups is read.
_MEMBERS = select(_GROUPS.c.group_id, _NAMED.c.name).join(_NAMED, _NAMED.c.name == _NAMED.c.name).subquery("members")
_OF_MEMBERS = (
    group_of(delivery) == _MEMBERS.c.group_id,
    delivery.c.topic_id == bindparam("of_topic"),
    delivery.c.message_group == _MEMBERS.c.name,
)
_HELD = select(delivery.c.message_group).join(_MEMBERS, and_(*_OF_MEMBERS)).where(in_states(delivery.c.state, *TIMED))
_END_READY = delete(delivery).where(
    tuple_(group_of(delivery), delivery.c.message_group).in_(select(_MEMBERS.c.group_id, _MEMBERS.c.name)),
    delivery.c.topic_id == bindparam("of_topic"),
)
_END_POSITIONS = delete(behind).where(
    tuple_(behind.c.group_id, behind.c.message_group).in_(select(_MEMBERS.c.group_id, _MEMBERS.c.name)),
    behind.c.queue_id == bindparam("of_queue"),
)
_END = delete(lite_topic).where(
    lite_topic.c.topic_id == bindparam("of_topic"), lite_topic.c.name.in_(select(_NAMED.c.name))
)
_MOVE_EXPIRED = (
    update(queue).where(queue.c.queue_id == bindparam("of_queue")).values(lite_expired_offset=queue.c.next_offset)
)
_COUNT = (
    update(topic_table)
    .where(topic_table.c.topic_id == bindparam("of_topic"))
    .values(lite_topics=topic_table.c.lite_topics - bindparam("removed"))
)
