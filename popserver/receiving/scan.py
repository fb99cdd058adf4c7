"""The scan: it reads new messages, from the group's progress in each queue.

A receive locks the progress row before it reads the queue, so two receives never read the same range. A SQL filter has
judged the messages before, without this lock (`receiving.filter_fetch`). A filter judges a message once, before its
first grant. The scan skips messages that the filter refuses; they count as consumed. It also skips messages of blocked
message groups, and adds a position at the first skipped offset of each. When the message group opens, receives continue
at this offset (`message_groups`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Executable,
    ScalarSelect,
    Select,
    and_,
    bindparam,
    func,
    literal_column,
    or_,
    select,
)

from popserver.catalog import progress
from popserver.catalog.progress import QueueToScan
from popserver.database.dialect import Dialect, PerDialect
from popserver.database.rows import encode_column
from popserver.delivery import delivered
from popserver.delivery.queues_to_read import ENOUGH_QUEUES, QUEUE_QUERIES
from popserver.engine.transaction import Transaction
from popserver.fifo import moving_positions
from popserver.fifo.positions import MessageGroupKey, any_position_from
from popserver.fifo.runs import any_of_run
from popserver.fifo.start_offsets import own_start
from popserver.filters import SqlFilter, TagFilter
from popserver.filters.tags import EVERYTHING
from popserver.messages.by_key import MessageQuery, MessageRow, Narrowing, in_order
from popserver.messages.ranges import PASSED, WINDOW_OFFSETS, WITH_TAG, narrowed, of_tags
from popserver.model.names import owner_of
from popserver.model.topic import OFFSET_BITS, offset_of
from popserver.receiving.batch import Candidate, ReceiveBatch

# A scan with a filter reads at most this many offsets, in all queues together.
_FIRST_WINDOW = 4 * WINDOW_OFFSETS
# A scan reads this many accepted messages of a SQL filter for each that it needs: some message groups may be blocked.
_ACCEPTED_PER_NEEDED = 4
# If open message groups have messages, the scan reads `_BESIDE_OPEN_GROUPS` offsets for each message that it needs, and
# at least `_BESIDE_OPEN_GROUPS_MIN`.
_BESIDE_OPEN_GROUPS = 2
_BESIDE_OPEN_GROUPS_MIN = 32


def lock_queues(tx: Transaction, batch: ReceiveBatch) -> list[QueueToScan]:
    """Lock and return the queues that may have messages, in the order to read them. Queues that another server reads
    are left out.

    Where the number of offsets is the number of messages, only as many queues are locked as the search needs, so that
    other servers can read the others.
    """
    if tx.has_other_writers and batch.wanted == EVERYTHING and not (batch.takes_groups or batch.by_priority):
        return ENOUGH_QUEUES.rows(tx.conn, batch.parameters | {"enough": batch.capacity, "turn": batch.rotation})
    rows = QUEUE_QUERIES[batch.takes_groups].of(tx.conn).locked.rows(tx.conn, batch.parameters)
    return _in_turn(batch, rows) if len(rows) > 1 else rows


def queues_of(conn: Connection, batch: ReceiveBatch) -> list[QueueToScan]:
    """All queues that may have messages, in the same order, without locks."""
    return _in_turn(batch, QUEUE_QUERIES[batch.takes_groups].of(conn).seen.rows(conn, batch.parameters))


def _in_turn(batch: ReceiveBatch, rows: Sequence[QueueToScan]) -> list[QueueToScan]:
    if batch.by_priority:
        return list(reversed(rows))
    start = batch.rotation % len(rows) if rows else 0
    return [*rows[start:], *rows[:start]]


def has_messages(tx: Transaction, batch: ReceiveBatch) -> bool:
    """Whether messages wait for the group, also in queues that another server has locked."""
    return tx.conn.execute(QUEUE_QUERIES[batch.takes_groups].of(tx.conn).is_more, batch.parameters).first() is not None


def read_on(
    tx: Transaction, batch: ReceiveBatch, queues: Sequence[QueueToScan], limit: int, *, beside_open_groups: bool
) -> tuple[list[Candidate], bool]:
    """Up to `limit` new messages after the group's progress, which moves on. Returns also whether messages may be left.

    `beside_open_groups`: open message groups have messages too. Then the scan does not read far, because each message
    of a blocked message group is read twice: the scan skips it, and a later search of its message group reads it again.
    """
    found: list[Candidate] = []
    left_over = bool(queues) and queues[0].has_others
    window = max(_BESIDE_OPEN_GROUPS_MIN, _BESIDE_OPEN_GROUPS * limit) if beside_open_groups else _FIRST_WINDOW
    for queue in queues:
        # On Postgres `end_offset` may be older than the locked progress row: never move back to it.
        if queue.next_offset >= queue.end_offset:
            continue
        if len(found) == limit or window <= 0:
            left_over = True
            break
        rows, next_offset = _read_on(tx, batch, queue, limit - len(found), min(window, WINDOW_OFFSETS))
        if next_offset == queue.next_offset and batch.by_priority:
            # The filter has not judged these urgent messages yet; less urgent ones must not be granted first.
            left_over = True
            break
        if batch.takes_groups or batch.wanted != EVERYTHING:
            # A queue has a cost beside that of its messages: a filter may name thousands of tags.
            cost = len(batch.wanted.tags) if isinstance(batch.wanted, TagFilter) else 1
            window -= next_offset - queue.next_offset + cost
        if not batch.keeps_order:
            rows = _without_delivery(tx, batch, rows)
        topic_id, queue_id = batch.topic.topic_id, queue.queue_id
        found += [
            Candidate(row, 1)
            if row.message_group is None or not batch.keeps_order
            else Candidate(row, 1, MessageGroupKey(topic_id, queue_id, row.message_group))
            for row in rows
        ]
        left_over = left_over or next_offset < queue.end_offset
        if next_offset > queue.next_offset:
            progress.move_on(tx.conn, batch.group.group_id, queue.queue_id, next_offset)
    return found, left_over


def store_left_over(
    tx: Transaction, batch: ReceiveBatch, left: Iterable[tuple[str, Candidate]], _grants: object
) -> None:
    """Add positions for the message groups of messages that were found and not granted: grants of others block them."""
    first: dict[MessageGroupKey, int] = {}
    for _, each in left:
        if each.group_key is not None:
            first.setdefault(each.group_key, offset_of(each.row.message_key))
    if first:
        rows = [(each.queue_id, offset, each.message_group) for each, offset in first.items()]
        moving_positions.add_at(tx.conn, batch.group.group_id, batch.topic.topic_id, rows)


def _without_delivery(tx: Transaction, batch: ReceiveBatch, rows: list[MessageRow]) -> list[MessageRow]:
    """The messages that have no delivery yet. In a group's own topic, messages redriven to it have one."""
    if not rows or owner_of(batch.topic.name) != batch.group.name:
        return rows
    with_delivery = delivered.among(tx.conn, batch.group.group_id, (row.message_key for row in rows))
    return [row for row in rows if row.message_key not in with_delivery]


def _read_on(
    tx: Transaction, batch: ReceiveBatch, queue: QueueToScan, limit: int, window: int
) -> tuple[list[MessageRow], int]:
    """Messages of one queue after the group's progress that the filter accepts, and the offset that was reached."""
    start, end = max(queue.next_offset, queue.min_offset), queue.end_offset
    queue_key = queue.queue_id << OFFSET_BITS
    if batch.wanted == EVERYTHING and not batch.takes_groups:
        parameters = {"from_key": queue_key + start, "to_key": queue_key + end, "limit": limit}
        rows = _NEXT.rows(tx.conn, parameters, bodies=batch.bodies)
        # The topic's types are cached and may have changed since, so the messages are checked for a message group.
        if not (batch.keeps_order and any(row.message_group for row in rows)):
            return rows, offset_of(rows[-1].message_key) + 1 if len(rows) == limit else end
    parameters = {
        **batch.parameters,
        "from_key": queue_key + start,
        "to_key": queue_key + min(end, start + window),
        "limit": limit,
        "for_queue": queue.queue_id,
        "queue_key": queue_key,
        "start_key": queue_key + queue.start_offset,
        "start_offset": queue.start_offset,
    }
    if isinstance(batch.wanted, SqlFilter):
        rows, reached = _read_judged(tx, batch, parameters)
    else:
        rows, reached = _read_tagged(tx, batch, batch.wanted, parameters)
    if batch.keeps_order and reached - start > len(rows):
        # Before the grants are written: they lock message groups too, whose messages the scan did not skip.
        tx.conn.execute(_ADD_BLOCKED.of(tx.conn), parameters | {"to_key": queue_key + reached})
    return rows, reached


def _read_tagged(
    tx: Transaction, batch: ReceiveBatch, wanted: TagFilter, parameters: dict[str, Any]
) -> tuple[list[MessageRow], int]:
    queries = _FREE.of(tx.conn) if batch.keeps_order else _ALL
    query, parameters = (
        (queries.every, parameters) if wanted == EVERYTHING else (queries.tagged, parameters | of_tags(wanted))
    )
    rows = query.rows(tx.conn, parameters, bodies=batch.bodies)
    is_full = len(rows) == parameters["limit"]
    return rows, (rows[-1].message_key + 1 if is_full else parameters["to_key"]) - parameters["queue_key"]


def _read_judged(tx: Transaction, batch: ReceiveBatch, parameters: dict[str, Any]) -> tuple[list[MessageRow], int]:
    """The messages that the SQL filter accepted, as far as it has judged them."""
    judged = batch.judged.range_of(parameters["for_queue"], parameters["from_key"])
    if judged is None:
        return [], parameters["from_key"] - parameters["queue_key"]
    to_key = min(parameters["to_key"], judged.to_key)
    keys = judged.accepted[: bisect_left(judged.accepted, to_key)]
    at_once = parameters["limit"] * (_ACCEPTED_PER_NEEDED if batch.takes_groups else 1)
    if len(keys) > at_once:
        keys, to_key = keys[:at_once], keys[at_once]
    query = (_FREE.of(tx.conn) if batch.keeps_order else _ALL).chosen
    rows = query.rows(tx.conn, parameters | {"keys": encode_column(keys)}, bodies=batch.bodies) if keys else []
    reached = rows[-1].message_key + 1 if len(rows) == parameters["limit"] else to_key
    return rows, reached - parameters["queue_key"]


def _start(dialect: Dialect, message_group: Any, of_queue: str) -> ColumnElement[int]:
    """The lower bound of a search for a message group: its own start, or its queue's `start_key` or `start_offset`."""
    start: ColumnElement[int] = bindparam(of_queue, type_=BigInteger)
    if not dialect.has_other_writers:
        return start
    found = own_start(bindparam("group_id"), bindparam("for_queue"), message_group).correlate(message_group.table)
    first = bindparam("queue_key", type_=BigInteger) if of_queue == "start_key" else literal_column("0")
    return func.coalesce(first + found, start)


def _any_delivery(dialect: Dialect, message_group: Any) -> ScalarSelect[int]:
    return any_of_run(
        dialect,
        group_id=bindparam("group_id"),
        topic_id=bindparam("topic_id"),
        message_group=message_group,
        from_key=_start(dialect, message_group, "start_key"),
    )


def _any_position(dialect: Dialect, message_group: Any) -> ScalarSelect[int]:
    group_id, queue_id = (bindparam(name, type_=BigInteger) for name in ("group_id", "for_queue"))
    key = group_id, queue_id, message_group
    return any_position_from(dialect, key, _start(dialect, message_group, "start_offset"))


def _only_free(dialect: Dialect) -> Narrowing:
    """Narrow a query to messages without a message group, and to those whose message group is not blocked."""

    def narrow(found: Select[Any]) -> Select[Any]:
        message_group = found.selected_columns.message_group
        is_free = _any_delivery(dialect, message_group).is_(None), _any_position(dialect, message_group).is_(None)
        return found.where(or_(message_group.is_(None), and_(*is_free)))

    return narrow


class _Queries(NamedTuple):
    """The queries that read a range of a queue."""

    every: MessageQuery
    tagged: MessageQuery
    chosen: MessageQuery  # among `keys`


def _queries(only: Narrowing) -> _Queries:
    every, tagged = narrowed(), narrowed(*WITH_TAG)
    return _Queries(
        MessageQuery(lambda found: only(every(found))),
        MessageQuery(lambda found: tagged(only(found))),
        MessageQuery(lambda found: only(in_order(found)).limit(bindparam("limit"))),
    )


_ALL = _queries(lambda found: found)
_FREE = PerDialect(lambda dialect: _queries(_only_free(dialect)))
_NEXT = _ALL.every


def _add_blocked(dialect: Dialect) -> Executable:
    """Add a position at the first skipped message, for each message group with held messages that has none."""
    message_group: Any = PASSED.c.message_group
    skipped = select(
        bindparam("group_id", type_=BigInteger),
        bindparam("for_queue", type_=BigInteger),
        message_group,
        bindparam("topic_id", type_=BigInteger),
        func.min(PASSED.c.message_key) - bindparam("queue_key", type_=BigInteger),
    ).where(
        message_group.is_not(None),
        _any_delivery(dialect, message_group).is_not(None),
        _any_position(dialect, message_group).is_(None),
    )
    return moving_positions.adding(skipped.group_by(message_group))


_ADD_BLOCKED = PerDialect(_add_blocked)
