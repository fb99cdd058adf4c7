"""Keeper of the counters of queues: their first and next offsets, and how sends take offsets.

A counter changes with each send, and a user's open transaction keeps all versions. So on Postgres a search meets the
newest version first (`database.newest`). Operations that may come last in a transaction never wait for a counter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Connection, any_, bindparam, case, func, literal_column, select, true, update

from popserver.catalog.queues import STORED, newest_queues
from popserver.catalog.topics import exists_with
from popserver.database.dialect import Dialect, PerDialect
from popserver.database.newest import is_newest, joined, newest, unindexed
from popserver.database.rows import RowStatement, encode_column, encode_rows, rows_parameter
from popserver.database.schema import KEY_SHIFT, queue
from popserver.database.statement import Statement
from popserver.engine.transaction import Transaction, in_steps


class Ends(NamedTuple):
    """The offsets that a queue stores: from `min_offset` up to, but not including, `end_offset`."""

    queue_id: int
    number: int
    min_offset: int
    end_offset: int


class TakenOffsets(NamedTuple):
    """Offsets of a queue, from `first` on, and the `stored_at_ms` of the messages there."""

    first: int
    stored_at_ms: int


class SentTo(NamedTuple):
    """The counters of a queue after a send has taken offsets: `next_offset` is the first offset after these."""

    queue_id: int
    next_offset: int
    stored_at_ms: int
    lite_expired_offset: int
    has_pending: int


def ends(conn: Connection, queue_ids: Collection[int]) -> dict[int, Ends]:
    """The first and end offsets of these queues, by queue id; without queues of deleted topics."""
    rows = _ENDS.of(conn).rows(conn, {"queues": encode_column(sorted(queue_ids))})
    return {row.queue_id: row for row in rows}


def ends_of_topic(conn: Connection, topic_id: int) -> list[Ends]:
    """The same for all queues of a topic, by number; empty if the topic is deleted."""
    return _ENDS_OF_TOPIC.of(conn).rows(conn, {"of_topic": topic_id})


def take(tx: Transaction, queue_id: int, count: int) -> TakenOffsets | None:
    """Take `count` offsets in one statement; None if the queue does not exist."""
    names = {"chosen": queue_id, "count": count, "now_ms": tx.now_ms}
    row = tx.conn.execute(_TAKE_OF_NEWEST, names).first() if tx.has_other_writers else None
    row = row or tx.conn.execute(_TAKE, names).first()
    return None if row is None else TakenOffsets(row.next_offset - count, row.newest_stored_at_ms)


def take_available(tx: Transaction, counts: Mapping[int, int]) -> dict[int, TakenOffsets]:
    """Take offsets of those of these queues that no other transaction has locked; `counts` and results by queue id."""
    names = {"counts": encode_rows(list(counts.items())), "now_ms": tx.now_ms}
    rows = tx.conn.execute(_TAKE_AVAILABLE.of(tx.conn), names)
    return {row[0]: TakenOffsets(row.next_offset - counts[row[0]], row.newest_stored_at_ms) for row in rows}


class TakeToSend:
    """Takes offsets of queues of an existing topic, with one statement for all of them.

    The statement also returns whether messages are pending, by two subqueries that are NULL if none is: `any_of_topic`
    (parameter `of_topic`) and, on Postgres, `any_of_ids` for the caller's messages.
    """

    def __init__(self, any_of_topic: Any, any_of_ids: Any) -> None:
        chosen: tuple[Any, Any] = bindparam("count"), queue.c.queue_id == bindparam("chosen")
        of_several = _COUNTS.c.count, _IS_COUNTED, queue.c.queue_id.in_(select(_LOCKED.c.queue_id))
        is_newest_chosen = is_newest(queue, queue_id=bindparam("chosen"))
        # For one queue, and for several.
        self._alone = _take_to_send(any_of_topic, *chosen), _take_to_send(any_of_topic, *of_several)
        self._beside_others = (
            (
                _take_to_send(any_of_ids, bindparam("count"), is_newest_chosen),
                _take_to_send(any_of_ids, _COUNTS.c.count, _IS_COUNTED, _is_newest_counted(skip_locked=False)),
            ),
            # Another server may change a queue just now, and then no row is its newest version: find it by its key.
            (_take_to_send(any_of_ids, *chosen), _take_to_send(any_of_ids, *of_several)),
        )

    def rows(self, tx: Transaction, topic_id: int, counts: Mapping[int, int], names: Mapping[str, Any]) -> list[SentTo]:
        """So many offsets of each queue, by queue id. `names`: the parameters of the subqueries."""
        names = {**names, "now_ms": tx.now_ms, "of_topic": topic_id}
        taken: list[SentTo] = []
        for one, several in self._beside_others if tx.has_other_writers else (self._alone,):
            if not counts:
                break
            if len(counts) == 1:
                ((queue_id, count),) = counts.items()
                found = one.execute(tx.conn, names | {"chosen": queue_id, "count": count})
            else:
                found = several.execute(tx.conn, names | {"counts": encode_rows(sorted(counts.items()))})
            taken += map(SentTo._make, found.fetchall())
            counts = {queue_id: counts[queue_id] for queue_id in counts.keys() - {row.queue_id for row in taken}}
        return taken


def lock_available(conn: Connection, queue_ids: Sequence[int], count: int = 1) -> set[int]:
    """Lock the first `count` of these queues that no other transaction has locked, without waiting; returns them."""
    ranks = [(queue_id, rank) for rank, queue_id in enumerate(queue_ids)]
    return set(conn.execute(_LOCK_AVAILABLE, {"ranks": encode_rows(ranks), "count": count}).scalars())


def keep(tx: Transaction, queue_ids: Collection[int]) -> None:
    """Lock these queues against retention and the removal of their topic. Sends to them do not wait."""
    for step in in_steps(sorted(queue_ids)) if tx.has_other_writers else ():
        tx.conn.execute(_KEEP, {"queues": encode_column(step)})


def begin_at(conn: Connection, queue_id: int, offset: int | None) -> None:
    """Set the first offset of a queue after messages were removed; None: its end. The caller has locked the queue."""
    conn.execute(_BEGIN_AT, {"of_queue": queue_id, "to_offset": offset})


def expire_lite_topics(conn: Connection, queue_id: int) -> None:
    """Note that lite topics have expired, whose messages are before the queue's end. The caller has locked it."""
    conn.execute(update(queue).where(queue.c.queue_id == queue_id).values(lite_expired_offset=queue.c.next_offset))


def close(conn: Connection, topic_id: int, closed_at_ms: int | None) -> None:
    """Let the topic's queues take no messages of producers; None: let them take some. The caller has locked them."""
    conn.execute(update(queue).where(queue.c.topic_id == topic_id).values(closed_at_ms=closed_at_ms))


def ahead_of(conn: Connection, now_ms: int) -> Sequence[int]:
    """The queues whose latest message was stored after `now_ms`."""
    ahead = select(queue.c.queue_id).where(queue.c.newest_stored_at_ms > now_ms).order_by(queue.c.queue_id)
    return conn.execute(ahead).scalars().all()


def turn_back(conn: Connection, now_ms: int) -> None:
    """After the server time has gone back to `now_ms`: no queue has a later message."""
    conn.execute(update(queue).where(queue.c.newest_stored_at_ms > now_ms).values(newest_stored_at_ms=now_ms))


def lite_expired_key() -> Any:
    """All messages of expired lite topics in the queue `of_queue` have lower keys than this one."""
    key: Any = queue.c.queue_id.op("<<")(KEY_SHIFT) + queue.c.lite_expired_offset
    return select(key).where(_IS_IT).scalar_subquery()


_IS_IT = queue.c.queue_id == bindparam("of_queue")
_QUEUES = rows_parameter("queues", "queue_id")
_COUNTS = rows_parameter("counts", "queue_id", "count")
_RANKS = rows_parameter("ranks", "queue_id", "rank")
_NOW = bindparam("now_ms", type_=BigInteger)


def _ends_of(found: Any, queues: Any) -> Any:
    columns = queues.c.queue_id, queues.c.number, queues.c.min_offset, queues.c.next_offset.label("end_offset")
    return select(*columns).select_from(found).where(exists_with(queues.c.topic_id))


def _ends_of_topic(dialect: Dialect) -> RowStatement[Ends]:
    queues: Any = STORED
    if dialect.has_other_writers:
        topics = select(bindparam("of_topic", type_=BigInteger).label("topic_id")).subquery("topics")
        queues = newest_queues(topics)
    of_topic = queues.c.topic_id == bindparam("of_topic")
    return RowStatement(Ends, _ends_of(queues, queues).where(of_topic).order_by(queues.c.number))


_ENDS = PerDialect(lambda dialect: RowStatement(Ends, _ends_of(*joined(dialect, _QUEUES, queue, "queue_id"))))
_ENDS_OF_TOPIC = PerDialect(_ends_of_topic)


# The `stored_at_ms` of new messages: now, but not before the latest message in the queue. Servers read their time
# before they have locked the queue, so another server with a later time may have been first.
_STORED_AT_MS = case((queue.c.newest_stored_at_ms > _NOW, queue.c.newest_stored_at_ms), else_=_NOW)


def _taking(count: Any) -> Any:
    return update(queue).values(next_offset=queue.c.next_offset + count, newest_stored_at_ms=_STORED_AT_MS)


_TAKEN = queue.c.queue_id, queue.c.next_offset, queue.c.newest_stored_at_ms
_take = _taking(bindparam("count")).returning(*_TAKEN)
_TAKE = _take.where(queue.c.queue_id == bindparam("chosen"))
_TAKE_OF_NEWEST = _take.where(is_newest(queue, queue_id=bindparam("chosen")))
_IS_COUNTED = queue.c.queue_id == _COUNTS.c.queue_id
# A CTE with an order: it locks all counted queues in one order, before the UPDATE changes one. Otherwise servers might
# deadlock.
_LOCKED = (
    select(queue.c.queue_id)
    .where(queue.c.queue_id.in_(select(_COUNTS.c.queue_id)))
    .order_by(queue.c.queue_id)
    .with_for_update()
    .cte("locked")
)


def _take_to_send(has_pending: Any, count: Any, *is_chosen: Any) -> Statement:
    """It returns the columns of `SentTo`; nothing for a deleted topic, because a server that has not read the deletion
    yet would store messages that no group reads; and nothing for a queue that is closed for producers."""
    taken = _taking(count).where(*is_chosen, queue.c.closed_at_ms.is_(None), exists_with(bindparam("of_topic")))
    return Statement(
        taken.returning(
            queue.c.queue_id,
            queue.c.next_offset,
            queue.c.newest_stored_at_ms.label("stored_at_ms"),
            queue.c.lite_expired_offset,
            func.coalesce(has_pending, literal_column("0")).label("has_pending"),
        )
    )


def _is_newest_counted(*, skip_locked: bool) -> Any:
    """The condition that a row is the newest version of a counted queue. It locks the queues in the order of counts.

    An array of addresses: Postgres finds the rows before the UPDATE, and reads no old version by the primary key.
    """
    row = newest(queue.alias("newest"), literal_column("newest.ctid").label("address"), queue_id=_COUNTS.c.queue_id)
    locked = row.with_for_update(skip_locked=skip_locked).lateral("locked")
    found = select(locked.c.address).select_from(_COUNTS.join(locked, true()))
    return literal_column("queue.ctid") == any_(func.array(found.correlate(None).scalar_subquery()))


def _take_available(dialect: Dialect) -> Any:
    taken = _taking(_COUNTS.c.count).returning(*_TAKEN)
    if not dialect.has_other_writers:
        return taken.where(_IS_COUNTED)
    return taken.where(_is_newest_counted(skip_locked=True), unindexed(queue.c.queue_id) == _COUNTS.c.queue_id)


_TAKE_AVAILABLE = PerDialect(_take_available)
_LOCK_AVAILABLE = (
    select(queue.c.queue_id)
    .join(_RANKS, _RANKS.c.queue_id == queue.c.queue_id)
    .order_by(_RANKS.c.rank)
    .limit(bindparam("count"))
    .with_for_update(of=queue, skip_locked=True)
)
_KEEP = (
    select(queue.c.queue_id)
    .where(queue.c.queue_id.in_(select(_QUEUES.c.queue_id)))
    .order_by(queue.c.queue_id)
    .with_for_update(read=True, key_share=True)
)
_BEGIN_AT = (
    update(queue)
    .where(_IS_IT)
    .values(min_offset=func.coalesce(bindparam("to_offset", type_=BigInteger), queue.c.next_offset))
)
