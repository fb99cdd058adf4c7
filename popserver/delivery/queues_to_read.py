"""The queues that a group has to read, and its progress in them: the first lookup of each receive.

The rows change with each send and each receive. On Postgres the lookup meets the newest version of each row first
(`database.newest`), because a user's open transaction keeps all versions.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Executable,
    FromClause,
    Select,
    bindparam,
    false,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
)

from popserver.catalog.progress import REACHED, QueueToScan, newest_of
from popserver.catalog.queues import STORED, newest_queues
from popserver.database.dialect import Dialect, PerDialect
from popserver.database.rows import RowStatement
from popserver.delivery import ready
from popserver.engine.searches import SearchedFrom
from popserver.fifo.positions import OPEN_SINCE_MS, any_open_of


class ReadySearch(NamedTuple):
    """A search of a consumer group in a topic: for messages that are READY again, or for open message groups."""

    group_id: int
    topic_id: int


class ReadyFrom(SearchedFrom[ReadySearch]):
    """Lower time bounds of searches for messages that are READY again: none becomes READY at a time long ago
    (`settling.expire`)."""

    slack_ms: ClassVar = 2_000


class OpenFrom(SearchedFrom[ReadySearch]):
    """The same for open message groups."""

    slack_ms: ClassVar = 2_000


_OF_TOPIC: BindParameter[int] = bindparam("topic_id")
_OF_GROUP: BindParameter[int] = bindparam("group_id")


class QueueQueries(NamedTuple):
    """The statements of a receive: queues to read, with locks and without, and whether there are messages at all."""

    locked: RowStatement[QueueToScan]
    seen: RowStatement[QueueToScan]
    is_more: Executable


def _queue_queries(dialect: Dialect, *, takes_groups: bool) -> QueueQueries:
    open_since_ms = OPEN_SINCE_MS if takes_groups else None
    if dialect.has_other_writers:
        seen, locked = (_newest_queues(open_since_ms, is_locked=is_locked) for is_locked in (False, True))
    else:
        # SQLite has one writer, so it needs no locks.
        seen = locked = _joined_queues(open_since_ms, _is_to_read(REACHED, STORED, open_since_ms))
    any_behind = seen.with_only_columns(literal_column("1")).order_by(None).exists()
    more = [ready.SINCE_MS.is_not(None), any_behind] + ([] if open_since_ms is None else [open_since_ms.is_not(None)])
    return QueueQueries(
        RowStatement(QueueToScan, locked),
        RowStatement(QueueToScan, seen),
        select(literal_column("1")).where(or_(*more)),
    )


def _columns(at: FromClause, queues: FromClause, open_since_ms: Any, has_others: Any = None) -> list[Any]:
    """The columns of a `QueueToScan`; `at` is the group's progress."""
    return [
        at.c.group_id,
        at.c.queue_id,
        at.c.next_offset,
        at.c.start_offset,
        queues.c.min_offset,
        queues.c.next_offset.label("end_offset"),
        ready.SINCE_MS.label("ready_since_ms"),
        (null() if open_since_ms is None else open_since_ms).label("open_since_ms"),
        (false() if has_others is None else has_others).label("has_others"),
    ]


def _is_to_read(at: FromClause, queues: FromClause, open_since_ms: Any) -> Any:
    is_behind = at.c.next_offset < queues.c.next_offset
    return is_behind if open_since_ms is None else or_(is_behind, open_since_ms.is_not(None))


def _joined_queues(open_since_ms: Any, *where: Any) -> Select[Any]:
    """The queues by plain joins."""
    return (
        select(*_columns(REACHED, STORED, open_since_ms))
        .select_from(STORED)
        .join(REACHED, REACHED.c.queue_id == STORED.c.queue_id)
        .where(STORED.c.topic_id == _OF_TOPIC, REACHED.c.group_id == _OF_GROUP, *where)
        # The order of the index on the topic's queues, so that no other topic's queues are read.
        .order_by(STORED.c.number)
    )


def _newest_rows() -> tuple[FromClause, FromClause]:
    """The queues of the topic, and beside each the group's progress in it."""
    topics = select(_OF_TOPIC.label("topic_id")).subquery("topics")
    queues = newest_queues(topics)
    at = newest_of("row_of_queue", _OF_GROUP, queues.c.queue_id).lateral("at")
    return queues, at


def _newest_queues(open_since_ms: Any, *, is_locked: bool) -> Select[Any]:
    """The queues by the newest version of each queue and of the group's progress in it (`database.newest`)."""
    queues, at = _newest_rows()
    found = queues.join(at, true())
    if is_locked:
        # Only progress in queues that have something to read is locked: other servers skip locked progress.
        locked = (
            newest_of("row_to_lock", _OF_GROUP, at.c.queue_id)
            .where(_is_to_read(at, queues, open_since_ms))
            .with_for_update(skip_locked=True)
            .lateral("locked")
        )
        found, at = found.join(locked, true()), locked
    query = select(*_columns(at, queues, open_since_ms)).select_from(found).order_by(queues.c.number)
    return query if is_locked else query.where(_is_to_read(at, queues, open_since_ms))


def _enough_queues() -> Select[Any]:
    """Those of the queues that have `enough` messages together, in the order to read them, with locks.

    The other queues stay free for other servers. `turn` chooses the first one.
    """
    queues, at = _newest_rows()
    behind = (
        select(queues.c.queue_id, queues.c.min_offset, queues.c.next_offset)
        .add_columns(
            (queues.c.next_offset - func.greatest(at.c.next_offset, queues.c.min_offset)).label("waiting"),
            (func.row_number().over(order_by=queues.c.number) - 1).label("place"),
            (bindparam("turn", type_=BigInteger) % func.count().over()).label("first_place"),
        )
        .select_from(queues.join(at, true()))
        .where(_is_to_read(at, queues, None))
        .subquery("behind")
    )
    order, waiting = (behind.c.place < behind.c.first_place, behind.c.place), func.sum(behind.c.waiting)
    counted = select(
        *behind.c,
        func.coalesce(waiting.over(order_by=order, rows=(None, -1)), 0).label("waiting_before"),
        waiting.over().label("waiting_in_all"),
    ).subquery("counted")
    enough = bindparam("enough", type_=BigInteger)
    locked = (
        newest_of("row_to_lock", _OF_GROUP, counted.c.queue_id)
        .where(counted.c.waiting_before < enough)
        .with_for_update(skip_locked=True)
        .lateral("locked")
    )
    return (
        select(*_columns(locked, counted, None, counted.c.waiting_in_all > enough))
        .select_from(counted.join(locked, true()))
        .order_by(counted.c.place < counted.c.first_place, counted.c.place)
    )


# In a topic of lite topics each queue has lite topics of any client, so a receive reads all queues that are not locked.
_OF_LITE = _joined_queues(literal_column("0"))
LITE_QUEUES = RowStatement(QueueToScan, _OF_LITE.with_for_update(of=REACHED, skip_locked=True))
IS_MORE_OF_LITE: Select[Any] = select(literal_column("1")).where(
    or_(
        any_open_of(select(ready.SUBSCRIBERS.c.client_id)),
        ready.SINCE_MS.is_not(None),
        _OF_LITE.with_only_columns(REACHED.c.queue_id)
        .where(REACHED.c.next_offset < STORED.c.next_offset)
        .order_by(None)
        .exists(),
    )
)
# On Postgres, of messages without message groups that no filter judges: as many queues as a search needs.
ENOUGH_QUEUES = RowStatement(QueueToScan, _enough_queues())
# By whether open message groups count too.
QUEUE_QUERIES = {
    False: PerDialect(lambda dialect: _queue_queries(dialect, takes_groups=False)),
    True: PerDialect(lambda dialect: _queue_queries(dialect, takes_groups=True)),
}
