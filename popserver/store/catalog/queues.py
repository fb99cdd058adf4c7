"""The message queues of a topic."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, insert, select

from popserver.domain.topic import MessageQueue
from popserver.store.packed import RowStatement
from popserver.store.schema import queue
from popserver.store.transaction import Transaction


class QueueRow(NamedTuple):
    """A queue of a topic, with its offsets."""

    topic_id: int
    queue_id: int
    number: int
    min_offset: int
    next_offset: int


def insert_queues(tx: Transaction, topic_id: int, numbers: Iterable[int]) -> None:
    rows = [{"topic_id": topic_id, "number": number, "min_offset": 0, "next_offset": 0} for number in numbers]
    tx.conn.execute(insert(queue), rows)


def queue_rows(conn: Connection, topic_id: int) -> list[QueueRow]:
    """The topic's queues by number."""
    return _QUEUES.rows(conn, {"of_topic": topic_id})


def queue_rows_of_several(conn: Connection, topic_ids: Collection[int]) -> dict[int, list[QueueRow]]:
    """The same by topic."""
    return _by_topic(_QUEUES_OF_SEVERAL.rows(conn, {"topic_ids": list(topic_ids)}))


def all_queue_rows(conn: Connection) -> dict[int, list[QueueRow]]:
    """The same of every topic there is, deleted ones too."""
    return _by_topic(_ALL_QUEUES.rows(conn, {}))


def message_queues(rows: Iterable[QueueRow]) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(row.queue_id, row.number) for row in rows)


def _by_topic(rows: Iterable[QueueRow]) -> dict[int, list[QueueRow]]:
    queues: dict[int, list[QueueRow]] = {}
    for row in rows:
        queues.setdefault(row.topic_id, []).append(row)
    return queues


_every = select(*(queue.c[name] for name in QueueRow._fields)).order_by(queue.c.number)
_QUEUES = RowStatement(QueueRow, _every.where(queue.c.topic_id == bindparam("of_topic")))
_QUEUES_OF_SEVERAL = RowStatement(QueueRow, _every.where(queue.c.topic_id.in_(bindparam("topic_ids", expanding=True))))
_ALL_QUEUES = RowStatement(QueueRow, _every)
