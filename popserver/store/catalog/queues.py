"""The message queues of a topic."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlalchemy import Connection, bindparam, insert, select

from popserver.domain.topic import MessageQueue
from popserver.store.schema import AnyRow, queue
from popserver.store.transaction import Transaction


def insert_queues(tx: Transaction, topic_id: int, numbers: Iterable[int]) -> None:
    rows = [{"topic_id": topic_id, "number": number, "min_offset": 0, "next_offset": 0} for number in numbers]
    tx.conn.execute(insert(queue), rows)


def queue_rows(conn: Connection, topic_id: int) -> list[AnyRow]:
    """The topic's queues by number."""
    return list(conn.execute(_QUEUES, {"of_topic": topic_id}))


def queue_rows_of_several(conn: Connection, topic_ids: Collection[int]) -> dict[int, list[AnyRow]]:
    """The same by topic."""
    return _by_topic(conn.execute(_QUEUES_OF_SEVERAL, {"topic_ids": list(topic_ids)}))


def all_queue_rows(conn: Connection) -> dict[int, list[AnyRow]]:
    """The same of every topic there is, deleted ones too."""
    return _by_topic(conn.execute(select(queue).order_by(queue.c.number)))


def message_queues(rows: Iterable[AnyRow]) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(row.queue_id, row.number) for row in rows)


def _by_topic(rows: Iterable[AnyRow]) -> dict[int, list[AnyRow]]:
    queues: dict[int, list[AnyRow]] = {}
    for row in rows:
        queues.setdefault(row.topic_id, []).append(row)
    return queues


_QUEUES = select(queue).where(queue.c.topic_id == bindparam("of_topic")).order_by(queue.c.number)
_QUEUES_OF_SEVERAL = (
    select(queue).where(queue.c.topic_id.in_(bindparam("topic_ids", expanding=True))).order_by(queue.c.number)
)
