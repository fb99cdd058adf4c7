"""The start offset of a consumer group in a queue: before it, all messages of message groups have ended.

A search for the deliveries of a message group begins there. On Postgres a user's open transaction keeps the index
entries of all deliveries since it began, and without a start offset each search would read them all. Kafka's share
groups have such an offset too, for their own reasons.

A message group that stays unfinished for long, because it waits for a retry or has many messages, would keep back the
start of its queue. So it gets a start of its own (`message_group_start`), and the queue's start advances without it.

The starts advance under the lock of the progress. Each transaction that grants messages in the queue has this lock, so
no message before a start gets a delivery. A reset sets the queue's start to 0 and removes the others. The start stays 0
on SQLite, whose indexes have no old entries, and for lite topics, whose clients may begin anywhere.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, FromClause, ScalarSelect, bindparam, case, func, literal_column, select

from popserver.catalog.progress import start_offset_of
from popserver.database.dialect import Dialect
from popserver.database.schema import KEY_SHIFT
from popserver.database.schema import message_group_start as group_start
from popserver.fifo.runs import any_of_run


def start_key(dialect: Dialect, rows: FromClause, group_id: ColumnElement[int]) -> ColumnElement[int]:
    """The message key at the start of each message group in `rows` (`queue_id`, `message_group`); 0 on SQLite."""
    if not dialect.has_other_writers:
        return literal_column("0")
    return rows.c.queue_id.op("<<")(KEY_SHIFT).op("|")(start_offset(rows, group_id))


def own_start(
    group_id: ColumnElement[int], queue_id: ColumnElement[int], message_group: ColumnElement[Any]
) -> ScalarSelect[int]:
    """The start offset of one message group alone; NULL if it has none."""
    start = group_start.alias("own_start")
    has_key = start.c.group_id == group_id, start.c.queue_id == queue_id, start.c.message_group == message_group
    return select(start.c.start_offset).where(*has_key).scalar_subquery()


def start_offset(rows: FromClause, group_id: ColumnElement[int]) -> ColumnElement[int]:
    """The start offset of each message group in `rows`: its own, or that of its queue; 0 without progress."""
    of_queue = start_offset_of(group_id, rows.c.queue_id).scalar_subquery()
    starts = own_start(group_id, rows.c.queue_id, rows.c.message_group), of_queue
    return func.coalesce(*(each.correlate(rows) for each in starts), literal_column("0"))


def has_run(dialect: Dialect, rows: FromClause, *, from_start: bool = False) -> ColumnElement[int]:
    """1 if the message group of a row has deliveries, else 0. `from_start`: the search begins at its start offset."""
    found = any_of_run(
        dialect,
        group_id=bindparam("group_id"),
        topic_id=bindparam("topic_id"),
        message_group=rows.c.message_group,
        from_key=start_key(dialect, rows, bindparam("group_id")) if from_start else literal_column("0"),
    )
    return case((found.is_not(None), literal_column("1")), else_=literal_column("0"))
