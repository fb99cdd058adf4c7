"""Where the messages of message groups begin that are not done: `start_offset` of a consumer group's progress.

A search for the deliveries of a message group begins there. On Postgres a user's open transaction keeps the entries of
all that were there since it began, and each search would read them from the first one on. Kafka's share groups have
such an offset too, for their own reasons.

A message group that is not done for long, because it waits for a retry or has many messages, would keep the start of
its queue back for all others. It gets a start of its own (`message_group_start`), and the queue's moves on without it.

The starts move under the lock on the progress, which is held by whoever grants messages in the queue, so no message
before them can get a delivery. A reset sets the queue's to 0 and ends the others. It stays there on SQLite, whose index
has no entries of the past, and for lite topics, whose clients may begin anywhere.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, FromClause, ScalarSelect, bindparam, case, func, literal_column, select

from popserver.catalog.progress import start_offset_of
from popserver.database.dialect import Dialect
from popserver.database.schema import KEY_SHIFT
from popserver.database.schema import message_group_start as own
from popserver.fifo.runs import any_of_run


def start_key(dialect: Dialect, rows: FromClause, group_id: ColumnElement[int]) -> ColumnElement[int]:
    """The message key where each message group in `rows` starts, which have its `queue_id` and `message_group`."""
    if not dialect.has_other_writers:
        return literal_column("0")
    return rows.c.queue_id.op("<<")(KEY_SHIFT).op("|")(start_offset(rows, group_id))


def own_start(
    group_id: ColumnElement[int], queue_id: ColumnElement[int], message_group: ColumnElement[Any]
) -> ScalarSelect[int]:
    """The start offset that a message group has for itself, NULL if it has none."""
    start = own.alias("own_start")
    of_this = start.c.group_id == group_id, start.c.queue_id == queue_id, start.c.message_group == message_group
    return select(start.c.start_offset).where(*of_this).scalar_subquery()


def start_offset(rows: FromClause, group_id: ColumnElement[int]) -> ColumnElement[int]:
    """Of each message group in `rows`: its own, or that of its queue; 0 without progress."""
    of_queue = start_offset_of(group_id, rows.c.queue_id).scalar_subquery()
    starts = own_start(group_id, rows.c.queue_id, rows.c.message_group), of_queue
    return func.coalesce(*(each.correlate(rows) for each in starts), literal_column("0"))


def has_run(dialect: Dialect, rows: FromClause, *, from_start: bool = False) -> ColumnElement[int]:
    """Whether messages of the message group in a row were granted before: 1 or 0. `from_start`: of those rows none is
    before the start offset of its queue."""
    found = any_of_run(
        dialect,
        group_id=bindparam("group_id"),
        topic_id=bindparam("topic_id"),
        message_group=rows.c.message_group,
        from_key=start_key(dialect, rows, bindparam("group_id")) if from_start else literal_column("0"),
    )
    return case((found.is_not(None), literal_column("1")), else_=literal_column("0"))
