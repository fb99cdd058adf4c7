"""Where the messages of message groups begin that are not done: `start_offset` of a consumer group's progress.

Whatever looks for the deliveries of a message group begins there. On Postgres a user's open transaction keeps the
entries of all that were there since it began, and each look would read them from the first one on. Kafka's share groups
have such an offset too, for their own reasons.

The offset moves under the lock on the progress, which everybody has who grants messages in the queue, so no message
before it can get a delivery. A reset sets it to 0. It stays there on SQLite, whose index has no entries of the past,
and for lite topics, whose clients may begin anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    ScalarSelect,
    Select,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    select,
    tuple_,
    update,
)

from popserver.database.dialect import Dialect
from popserver.database.newest import is_newest, newest
from popserver.database.schema import KEY_SHIFT, delivery, progress
from popserver.database.schema import message_group_progress as behind
from popserver.delivery.places import QueueToScan
from popserver.engine.transaction import Transaction
from popserver.model.topic import OFFSET_BITS

# Until the next look others read what ended since this one.
LOOK_AGAIN_MS = 2_000
PLACES_MAX = 10_000  # beyond that all looks are forgotten


class _Looks:
    """When to look again, by consumer group and queue."""

    def __init__(self) -> None:
        self.again_ms: dict[tuple[int, int], int] = {}


def start_key(rows: FromClause, group_id: ColumnElement[int]) -> ColumnElement[int]:
    """The message key at the start offset of the group's progress in the `queue_id` of each row; 0 without progress."""
    at = progress.alias("at_start")
    key = at.c.queue_id.op("<<")(KEY_SHIFT).op("|")(at.c.start_offset)
    found = newest(at, key, group_id=group_id, queue_id=rows.c.queue_id).correlate(rows).scalar_subquery()
    return func.coalesce(found, literal_column("0"))


def any_position(dialect: Dialect, rows: FromClause) -> ScalarSelect[int]:
    """The queue id of a message group's position; NULL if it has none. `rows` have its `group_id`, `queue_id` and
    `message_group`."""
    if not dialect.has_other_writers:
        return select(behind.c.queue_id).where(_is_of(behind, rows)).correlate(rows).scalar_subquery()
    one = behind.alias("one_position")
    return _first_position(one, rows, one.c.queue_id).correlate(rows).scalar_subquery()


def is_position(dialect: Dialect, rows: FromClause) -> ColumnElement[bool]:
    """The condition that a position is of a message group in `rows`; for UPDATE and DELETE. Its place is locked."""
    if not dialect.has_other_writers:
        return _is_of(behind, rows)
    one = behind.alias("one_position")
    place: ColumnElement[Any] = literal_column("one_position.ctid").label("place")
    found = _first_position(one, rows, place).correlate(rows).scalar_subquery()
    # The sums keep Postgres from looking for the keys, for which it may take any index.
    is_of = (behind.c[name] + literal_column("0") == rows.c[name] for name in ("group_id", "queue_id"))
    is_named = behind.c.message_group.concat(literal_column("''")) == rows.c.message_group
    return and_(literal_column(f"{behind.name}.ctid") == found, *is_of, is_named)


def _is_of(position: FromClause, rows: FromClause) -> ColumnElement[bool]:
    return and_(*(position.c[name] == rows.c[name] for name in ("group_id", "queue_id", "message_group")))


def _first_position(one: FromClause, rows: FromClause, *columns: ColumnElement[Any]) -> Select[Any]:
    """By the key, which on Postgres has the offset too: each position has few versions, and those before the start
    offset are past. The conditions and the order are like those of `is_in_run`."""
    at = progress.alias("at_start")
    found = newest(at, at.c.start_offset, group_id=rows.c.group_id, queue_id=rows.c.queue_id).correlate(rows)
    start_offset = func.coalesce(found.scalar_subquery(), literal_column("0"))
    order = one.c.message_group, one.c.next_offset
    return (
        select(*columns)
        .where(
            one.c.group_id == rows.c.group_id,
            one.c.queue_id == rows.c.queue_id,
            tuple_(*order) >= tuple_(rows.c.message_group, start_offset),
            one.c.message_group <= rows.c.message_group,
        )
        .order_by(*order)
        .limit(literal_column("1"))
    )


def is_in_run(
    dialect: Dialect,
    each: FromClause,
    *,
    group_id: ColumnElement[int],
    topic_id: ColumnElement[int],
    message_group: ColumnElement[Any],
    from_key: ColumnElement[int],
) -> ColumnElement[bool]:
    """Whether a delivery is in the message group, and its message key not before that one."""
    of_topic = and_(each.c.group_id == group_id, each.c.topic_id == topic_id)
    if not dialect.has_other_writers:
        return and_(of_topic, each.c.message_group == message_group, each.c.message_key >= from_key)
    # Together with `order_of_run` this makes Postgres take the index of message groups, because it compares the message
    # group by its range. Postgres believes that the table has few rows, and every index of it would do.
    is_from = tuple_(*order_of_run(each)) >= tuple_(message_group, from_key)
    return and_(of_topic, is_from, each.c.message_group <= message_group)


def order_of_run(each: FromClause) -> Sequence[ColumnElement[Any]]:
    """The order of the index of message groups, in one topic."""
    return each.c.message_group, each.c.message_key


def has_run(dialect: Dialect, rows: FromClause, *, from_start: bool = False) -> ColumnElement[int]:
    """Whether messages of the message group in a row were granted before: 1 or 0. `from_start`: of those rows none is
    before the start offset of its queue."""
    found = any_of_run(
        dialect,
        group_id=bindparam("group_id"),
        topic_id=bindparam("topic_id"),
        message_group=rows.c.message_group,
        from_key=start_key(rows, bindparam("group_id")) if from_start else literal_column("0"),
    )
    return case((found.is_not(None), literal_column("1")), else_=literal_column("0"))


def any_of_run(dialect: Dialect, **of_group: Any) -> ScalarSelect[int]:
    """The message key of a delivery in a message group (`is_in_run`); NULL if it has none.

    No EXISTS: Postgres would turn it into a join that reads all deliveries of the group.
    """
    each = delivery.alias("each_of_run")
    found = select(each.c.message_key).where(is_in_run(dialect, each, **of_group)).limit(literal_column("1"))
    return (found.order_by(*order_of_run(each)) if dialect.has_other_writers else found).scalar_subquery()


def advance(tx: Transaction, places: Sequence[QueueToScan]) -> None:
    """Move the start offsets of these queues on. Their progress is locked, and nothing was granted since."""
    looks = tx.remembered(_Looks)
    for place in places:
        where = (place.group_id, place.queue_id)
        if tx.now_ms < looks.again_ms.get(where, 0) <= tx.now_ms + LOOK_AGAIN_MS:
            continue
        if len(looks.again_ms) >= PLACES_MAX:
            looks.again_ms.clear()
        looks.again_ms[where] = tx.now_ms + LOOK_AGAIN_MS
        _advance(tx, place)


def _advance(tx: Transaction, place: QueueToScan) -> None:
    first_key = place.queue_id << OFFSET_BITS
    names = {"for_group": place.group_id, "for_queue": place.queue_id, "scan_offset": place.next_offset}
    keys = {"queue_key": first_key, "from_key": first_key + place.start_offset, "to_key": first_key + place.next_offset}
    start_offset = tx.conn.execute(_START, names | keys | {"start_offset": place.start_offset}).scalar_one()
    if start_offset > place.start_offset:
        tx.conn.execute(_MOVE, names | {"start_offset": start_offset})


_FIRST_DELIVERY = (
    select(delivery.c.message_key - bindparam("queue_key"))
    .where(
        delivery.c.group_id == bindparam("for_group"),
        delivery.c.message_key >= bindparam("from_key"),
        delivery.c.message_key < bindparam("to_key"),
    )
    .order_by(delivery.c.message_key)
    .limit(literal_column("1"))
    .scalar_subquery()
)
_FIRST_BEHIND = (
    select(behind.c.next_offset)
    .where(
        behind.c.group_id == bindparam("for_group"),
        behind.c.queue_id == bindparam("for_queue"),
        behind.c.next_offset >= bindparam("start_offset"),
    )
    .order_by(behind.c.next_offset)
    .limit(literal_column("1"))
    .scalar_subquery()
)
# LEAST leaves NULL out.
_START = select(func.least(bindparam("scan_offset"), _FIRST_DELIVERY, _FIRST_BEHIND))
_MOVE = (
    update(progress)
    .where(is_newest(progress, group_id=bindparam("for_group"), queue_id=bindparam("for_queue")))
    .values(start_offset=bindparam("start_offset"))
)
