"""The runs of message groups: the deliveries of one message group in a consumer group, in order.

The index `delivery_of_group` finds them, in their order. On Postgres a search begins at the start offset of the message
group (`fifo.start_offsets`), because a user's open transaction keeps the index entries of ended deliveries. Only the
lock of the progress protects a run. A reader without this lock sees the committed rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    ScalarSelect,
    Select,
    Subquery,
    and_,
    bindparam,
    func,
    literal_column,
    select,
    true,
    tuple_,
)

from popserver.database.dialect import Dialect
from popserver.database.newest import group_of, joined
from popserver.database.schema import KEY_SHIFT, WITH_TIME, delivery

MESSAGE_GROUP: Final = delivery.c.message_group


class GroupRunRow(NamedTuple):
    """The delivery of a message in a run."""

    message_key: int
    topic_id: int
    state: str
    attempt: int
    hold_id: int
    visible_at_ms: int
    client_id: str
    message_group: str


def blocked_counts(conn: Connection) -> dict[int, int]:
    """By consumer group, how many message groups have a message that is held or waits for a retry."""
    return {row[0]: row[1] for row in conn.execute(_BLOCKED_COUNTS)}


def groups_of(dialect: Dialect, keys: Subquery) -> Subquery:
    """The message groups that the deliveries `keys` (`group_id`, `message_key`) are in, each once."""
    found, one = joined(dialect, keys, delivery, "group_id", "message_key")
    queue_id = one.c.message_key.op(">>")(KEY_SHIFT).label("queue_id")
    touched = select(one.c.group_id, one.c.topic_id, one.c.message_group, queue_id).select_from(found)
    return touched.where(one.c.message_group.is_not(None)).distinct().subquery("touched")


def rows_of_runs(dialect: Dialect, named: FromClause, from_key: ColumnElement[int]) -> Select[Any]:
    """The runs (`GroupRunRow`) of the message groups `named` (`group_id`, `topic_id`, `message_group`)."""
    each = delivery.alias("each_of_run")
    in_run = _is_in_run_of(dialect, each, named, from_key)
    names = GroupRunRow._fields
    if dialect.has_other_writers:
        run = select(*(each.c[name] for name in names)).where(in_run).order_by(*_order_of_run(each))
        found = run.correlate(named).lateral("run")
        rows = select(*(found.c[name] for name in names)).select_from(named.join(found, true()))
        return rows.order_by(found.c.message_key)
    # First the index, then the rows: in one step, SQLite would scan all deliveries of a consumer group.
    is_row = and_(delivery.c.group_id == each.c.group_id, delivery.c.message_key == each.c.message_key)
    rows = select(*(delivery.c[name] for name in names)).select_from(named).join(each, in_run).join(delivery, is_row)
    return rows.order_by(each.c.message_key)


def length_of_run(dialect: Dialect, named: FromClause, from_key: ColumnElement[int]) -> ScalarSelect[int]:
    """How many deliveries the message group of a row in `named` has."""
    each = delivery.alias("each_of_run")
    in_run = _is_in_run_of(dialect, each, named, from_key)
    run = select(each.c.message_key).where(in_run).order_by(*_order_of_run(each)).correlate(named).subquery("run")
    return select(func.count()).select_from(run).scalar_subquery()


def any_of_run(dialect: Dialect, **of_group: Any) -> ScalarSelect[int]:
    """The key of a message that has a delivery in a message group; NULL if none has.

    `of_group`: `group_id`, `topic_id`, `message_group`, and the lowest key, `from_key`. No EXISTS: Postgres would turn
    it into a join that reads all deliveries of the consumer group.
    """
    each = delivery.alias("each_of_run")
    found = select(each.c.message_key).where(_is_in_run(dialect, each, **of_group)).limit(literal_column("1"))
    return (found.order_by(*_order_of_run(each)) if dialect.has_other_writers else found).scalar_subquery()


def first_in_queue(group_id: ColumnElement[int], queue_key: ColumnElement[int]) -> Select[Any]:
    """The offset and the message group of the first delivery of any message group with :from_key <= key < :to_key.

    The primary key finds it. The caller limits the query to one row, and may add conditions about MESSAGE_GROUP.
    """
    return (
        select((delivery.c.message_key - queue_key).label("first_offset"), MESSAGE_GROUP)
        .where(
            delivery.c.group_id == group_id,
            delivery.c.message_key >= bindparam("from_key"),
            delivery.c.message_key < bindparam("to_key"),
            MESSAGE_GROUP.is_not(None),
        )
        .order_by(delivery.c.message_key)
    )


def any_of_lite_topic(group_id: ColumnElement[int], topic_id: ColumnElement[int], name: ColumnElement[Any]) -> Any:
    """The key of a message that has a delivery in a lite topic; NULL if none has. No EXISTS, as in `any_of_run`."""
    is_in = group_of(delivery) == group_id, delivery.c.topic_id == topic_id, delivery.c.message_group == name
    return select(delivery.c.message_key).where(*is_in).limit(literal_column("1")).scalar_subquery()


def _is_in_run_of(
    dialect: Dialect, each: FromClause, named: FromClause, from_key: ColumnElement[int]
) -> ColumnElement[bool]:
    of_group = {name: named.c[name] for name in ("group_id", "topic_id", "message_group")}
    return _is_in_run(dialect, each, **of_group, from_key=from_key)


def _is_in_run(
    dialect: Dialect,
    each: FromClause,
    *,
    group_id: ColumnElement[int],
    topic_id: ColumnElement[int],
    message_group: ColumnElement[Any],
    from_key: ColumnElement[int],
) -> ColumnElement[bool]:
    """Whether a delivery is in the message group, and its message key is `from_key` or later."""
    of_topic = and_(group_of(each) == group_id, each.c.topic_id == topic_id)
    if not dialect.has_other_writers:
        return and_(of_topic, each.c.message_group == message_group, each.c.message_key >= from_key)
    # A range in the order of `_order_of_run`, which only the index `delivery_of_group` has. With an equality Postgres
    # may take another index, because it believes that the table has few rows.
    is_from = tuple_(*_order_of_run(each)) >= tuple_(message_group, from_key)
    return and_(of_topic, is_from, each.c.message_group <= message_group)


def _order_of_run(each: FromClause) -> Sequence[ColumnElement[Any]]:
    """The order of the index of message groups, in one topic."""
    return each.c.message_group, each.c.message_key


_BLOCKED = (
    select(delivery.c.group_id, delivery.c.topic_id, MESSAGE_GROUP)
    .where(MESSAGE_GROUP.is_not(None), WITH_TIME)
    .distinct()
    .subquery("blocked")
)
_BLOCKED_COUNTS = select(_BLOCKED.c.group_id, func.count()).group_by(_BLOCKED.c.group_id)
