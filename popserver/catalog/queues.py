"""Keeper of the queues of topics: their numbers and the offsets that they store. `queue_offsets` has their counters."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from sqlalchemy import CTE, ColumnElement, Connection, FromClause, delete, func, insert, literal_column, select, true

from popserver.database.dialect import Dialect, PerDialect
from popserver.database.rows import RowStatement, encode_column, rows_parameter
from popserver.database.schema import KEY_SHIFT, queue
from popserver.engine.transaction import Transaction
from popserver.model.topic import MessageQueue


class QueueRow(NamedTuple):
    """A queue of a topic, with its offsets."""

    topic_id: int
    queue_id: int
    number: int
    min_offset: int
    next_offset: int


class Totals(NamedTuple):
    """How many messages a topic stores, and how many it ever stored."""

    topic_id: int
    stored: int
    appended: int


def insert_queues(tx: Transaction, topic_id: int, numbers: Iterable[int], *, is_closed: bool = False) -> None:
    """`is_closed`: they take no messages of producers."""
    first: dict[str, int | None] = {"min_offset": 0, "next_offset": 0, "closed_at_ms": tx.now_ms if is_closed else None}
    rows = [{"topic_id": topic_id, "number": number, **first} for number in numbers]
    tx.conn.execute(insert(queue), rows)


def forget(conn: Connection, queue_id: int) -> int:
    """Remove an empty queue of a deleted topic; returns how many."""
    return conn.execute(delete(queue).where(queue.c.queue_id == queue_id)).rowcount


def queue_rows(conn: Connection, topic_id: int) -> list[QueueRow]:
    """The topic's queues, sorted by number."""
    return queue_rows_of_several(conn, [topic_id]).get(topic_id, [])


def queue_rows_of_several(conn: Connection, topic_ids: Collection[int]) -> dict[int, list[QueueRow]]:
    """The queues of several topics, by topic id."""
    queues: dict[int, list[QueueRow]] = {}
    for row in _OF_TOPICS.of(conn).rows(conn, {"topics": encode_column(topic_ids)}):
        queues.setdefault(row.topic_id, []).append(row)
    return queues


def all_queue_rows(conn: Connection) -> list[QueueRow]:
    """The queues of every topic, including deleted ones."""
    return _EVERY.rows(conn, {})


def queues_by_id(conn: Connection, queue_ids: Iterable[int]) -> dict[int, QueueRow]:
    """The existing ones of these queues, by id; also of deleted topics whose rows are not removed yet."""
    return {row.queue_id: row for row in _BY_ID.rows(conn, {"queues": encode_column(sorted(set(queue_ids)))})}


def totals(conn: Connection, topic_ids: Iterable[int]) -> dict[int, Totals]:
    """The messages of these topics, by topic id."""
    rows = conn.execute(_TOTALS, {"topics": encode_column(sorted(set(topic_ids)))})
    # Postgres's sum of integers is a decimal.
    return {row[0]: Totals(*map(int, row)) for row in rows}


def message_queues(rows: Iterable[QueueRow]) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(row.queue_id, row.number) for row in rows)


# For joins by `queue_id`, or by `topic_id` and `number`: the queues with their offsets.
STORED = select(*(queue.c[name] for name in QueueRow._fields), queue.c.newest_stored_at_ms).subquery("stored_queue")
# The number of messages that topics store, and that they ever stored; by `topic_id`.
_OF_TOPIC = (
    queue.c.topic_id,
    func.sum(queue.c.next_offset - queue.c.min_offset).label("stored"),
    func.sum(queue.c.next_offset).label("appended"),
)
TOTALS = select(*_OF_TOPIC).group_by(queue.c.topic_id).subquery("totals")


def first_key(queues: FromClause) -> ColumnElement[int]:
    """The key of the first message that a queue of `STORED` has, if it has any."""
    return queues.c.queue_id.op("<<")(KEY_SHIFT).op("|")(queues.c.min_offset)


def end_key(queues: FromClause) -> ColumnElement[int]:
    """The key after the last message that a queue of `STORED` has."""
    return queues.c.queue_id.op("<<")(KEY_SHIFT).op("|")(queues.c.next_offset)


def newest_queues(topics: FromClause) -> CTE:
    """`QueueRow`s of the topics (`topic_id`), on Postgres, by the newest version of each queue (`database.newest`).

    From the highest number down, one lookup for each queue: a scan of the topic's queues would read all old versions.
    """
    last = (
        select(*(queue.c[each] for each in QueueRow._fields))
        .where(queue.c.topic_id == topics.c.topic_id)
        .order_by(queue.c.number.desc())
        .limit(literal_column("1"))
        .correlate(topics)
        .lateral("last")
    )
    found = select(last).select_from(topics.join(last, true())).cte("queues", recursive=True)
    below = queue.alias("below")
    one_below = (
        select(*(below.c[each] for each in QueueRow._fields))
        .where(below.c.topic_id == found.c.topic_id, below.c.number < found.c.number)
        .order_by(below.c.number.desc())
        .limit(literal_column("1"))
        .lateral("one_below")
    )
    return found.union_all(select(one_below).select_from(found.join(one_below, true())))


_TOPICS = rows_parameter("topics", "topic_id")
_QUEUES = rows_parameter("queues", "queue_id")
_all = select(*(queue.c[name] for name in QueueRow._fields))
_EVERY = RowStatement(QueueRow, _all)
_BY_ID = RowStatement(QueueRow, _all.where(queue.c.queue_id.in_(select(_QUEUES.c.queue_id))))
_TOTALS = select(*_OF_TOPIC).where(queue.c.topic_id.in_(select(_TOPICS.c.topic_id))).group_by(queue.c.topic_id)


def _of_topics(dialect: Dialect) -> RowStatement[QueueRow]:
    if not dialect.has_other_writers:
        return RowStatement(
            QueueRow, _all.where(queue.c.topic_id.in_(select(_TOPICS.c.topic_id))).order_by(queue.c.number)
        )
    found = newest_queues(_TOPICS)
    return RowStatement(QueueRow, select(*(found.c[name] for name in QueueRow._fields)).order_by(found.c.number))


_OF_TOPICS = PerDialect(_of_topics)
