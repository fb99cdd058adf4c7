"""Message groups: which are behind the scan, which are open, and what the end of a message changes.

The progress row of a consumer group's queue is the lock of all message groups in it: a transaction locks it before it
reads, decides and writes. Requests that name messages lock their rows at the start of the transaction, in one order
(`lock`). Operations that choose messages lock only rows that no other transaction has (`lock_available`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Executable,
    Select,
    Subquery,
    Text,
    and_,
    bindparam,
    case,
    insert,
    literal_column,
    select,
    true,
    update,
)

from popserver.catalog.pauses import PAUSED_MESSAGE_GROUPS as PAUSED
from popserver.catalog.pauses import paused_at
from popserver.database.dialect import Dialect, PerDialect, dialect_of
from popserver.database.newest import joined, newest
from popserver.database.rows import RowQuery, encode_rows, rows_parameter
from popserver.database.schema import consumer_group, progress
from popserver.database.schema import message_group_progress as behind
from popserver.delivery import deliveries, fifo
from popserver.delivery.deliveries import Ending
from popserver.delivery.history import as_moved, record
from popserver.delivery.runs import GroupRunRow, groups_of, rows_of_runs
from popserver.delivery.start_offsets import any_position, is_position, start_key
from popserver.engine.transaction import LockOrder, Locks, Transaction
from popserver.members.lite_subscriptions import first_subscriber
from popserver.model.group import CHOOSING, Group
from popserver.model.states import Event, sources
from popserver.model.topic import queue_of


class GroupQueueKey(NamedTuple):
    """A consumer group in a queue: one progress row."""

    group_id: int
    queue_id: int


class MessageGroupKey(NamedTuple):
    """One message group of a topic."""

    topic_id: int
    queue_id: int
    message_group: str


def lock(tx: Transaction, places: Iterable[GroupQueueKey]) -> None:
    """Lock the places that a transaction names, before it does anything else. Waits for other transactions."""
    dialect_of(tx.conn).lock(tx.conn, _LOCK, {"places": encode_rows(sorted(set(places)))})


def locks_of(places: Iterable[GroupQueueKey]) -> tuple[Locks]:
    """The locks of a request that names messages in these places."""
    return (Locks(LockOrder.PROGRESS, lock, places),)


def lock_available(tx: Transaction, places: Iterable[GroupQueueKey]) -> set[GroupQueueKey]:
    """Lock and return the places that no other server has locked. Never waits."""
    wanted = sorted(set(places))
    if not tx.has_other_writers:
        return set(wanted)
    return {GroupQueueKey(*row) for row in tx.conn.execute(_LOCK_AVAILABLE, {"places": encode_rows(wanted)})}


def runs_around(conn: Connection, group_id: int, keys: Iterable[int]) -> list[GroupRunRow]:
    """The whole runs that these messages are in, in order."""
    return _AROUND.of(conn).rows(conn, {"places": encode_rows([(group_id, key) for key in keys])})


def runs_of(conn: Connection, group_id: int, members: Iterable[MessageGroupKey]) -> list[GroupRunRow]:
    """The runs of these message groups, in order."""
    names = encode_rows([(group_id, each.topic_id, each.queue_id, each.message_group) for each in members])
    return _OF_MEMBERS.of(conn).rows(conn, {"members": names})


def by_member(rows: Iterable[GroupRunRow]) -> dict[MessageGroupKey, list[GroupRunRow]]:
    """The rows by message group; the order stays."""
    runs: dict[MessageGroupKey, list[GroupRunRow]] = defaultdict(list)
    for row in rows:
        runs[MessageGroupKey(row.topic_id, queue_of(row.message_key), row.message_group)].append(row)
    return runs


def advance_groups(
    tx: Transaction, group: Group, runs: dict[MessageGroupKey, list[GroupRunRow]], acked: Collection[int] = frozenset()
) -> None:
    """Update message groups after messages of them ended or became READY, or the messages `acked` were acked.

    `runs` has the remaining run of each group, in order; it is empty for a group with no messages left.
    """
    ended: list[GroupRunRow] = []
    marked: list[GroupRunRow] = []
    finished: list[MessageGroupKey] = []
    ready: list[MessageGroupKey] = []
    for member, run in sorted(runs.items()):
        settled = fifo.advance(run, acked)
        left = run[settled.ended :]
        ended += run[: settled.ended]
        marked += [row for row in left if row.message_key in acked]
        if settled.is_open:
            (ready if left else finished).append(member)
    _commit(tx, group, ended, acked)
    _mark(tx, group, marked)
    _open(tx, group, finished)
    _open_again(tx, group, ready)


def advance_after_removal(tx: Transaction, group: Group, members: Collection[MessageGroupKey]) -> None:
    """Update message groups after their first messages, which were READY, were removed."""
    runs = by_member(runs_of(tx.conn, group.group_id, members))
    # They were open, but the message that is first now may be held.
    tx.conn.execute(_CLOSE.of(tx.conn), {"members": _as_members(group, sorted(runs))})
    advance_groups(tx, group, {member: runs.get(member, []) for member in members})


def lock_paused(tx: Transaction, group_id: int, member: MessageGroupKey) -> None:
    """Close a message group that is paused now, and give it a position if it has none. The caller has locked the place,
    in which the consumer group has progress."""
    names = {"for_group": group_id, "of_queue": member.queue_id, "of_message_group": member.message_group}
    if not tx.conn.execute(_CLOSE_ONE, names).rowcount:
        tx.conn.execute(_INSERT_CLOSED, names | {"of_topic": member.topic_id})


def lock_paused_again(tx: Transaction, group_id: int, queue_id: int) -> None:
    """Give the paused message groups of a queue positions again, at the progress of their consumer group."""
    tx.conn.execute(_INSERT_PAUSED, {"for_group": group_id, "of_queue": queue_id})


def unlock_resumed(tx: Transaction, group: Group, members: Collection[MessageGroupKey]) -> None:
    """Open those of these message groups whose first message may be granted. They were paused until now."""
    if members:
        runs = by_member(runs_of(tx.conn, group.group_id, members))
        advance_groups(tx, group, {member: runs.get(member, []) for member in members})


def _commit(tx: Transaction, group: Group, ended: Sequence[GroupRunRow], acked: Collection[int]) -> None:
    if not ended:
        return
    # No other transaction changes these rows: an ack has locked them, or their state is one of message groups alone.
    deliveries.end(tx, Ending.COMMIT, ((group.group_id, row.message_key) for row in ended))
    for event in (Event.ACK, Event.SETTLE):
        record(tx, group, event, (as_moved(row) for row in ended if row.state in sources(event)))


def _mark(tx: Transaction, group: Group, marked: Sequence[GroupRunRow]) -> None:
    if not marked:
        return
    deliveries.mark_acked(tx, ((group.group_id, row.message_key) for row in marked))
    record(tx, group, Event.PROVISIONAL_ACK, map(as_moved, marked))


def _open(tx: Transaction, group: Group, members: Sequence[MessageGroupKey]) -> None:
    """Open groups without held messages: their messages behind the scan come next. Groups without a row need none."""
    if members:
        open_all(tx, group, _as_members(group, members), {member.topic_id for member in members})


def open_all(tx: Transaction, group: Group, members: str, topic_ids: Collection[int]) -> None:
    """Open those of these message groups that have a row. `members` are encoded rows: group, queue, topic, name.
    `topic_ids` are the topics to wake; one too many does no harm."""
    if tx.conn.execute(_OPEN.of(tx.conn), {"members": members, "now_ms": tx.now_ms}).rowcount:
        if group.lite is not None:
            for _, _, topic_id, lite_topic in json.loads(members):
                tx.make_ready(topic_id, (lite_topic,))
            return
        for topic_id in topic_ids:
            tx.ready_topics.add(topic_id)


def _open_again(tx: Transaction, group: Group, members: Sequence[MessageGroupKey]) -> None:
    """Open groups whose first message is READY again. A group that was not behind the scan gets a row."""
    if not members:
        return
    names = {"members": _as_members(group, members), "now_ms": tx.now_ms}
    tx.conn.execute(_OPEN.of(tx.conn), names)
    tx.conn.execute(_MAKE_OPEN.of(tx.conn), names)
    _wake(tx, group, members)


def _wake(tx: Transaction, group: Group, members: Sequence[MessageGroupKey]) -> None:
    for member in members:
        if group.lite is None:
            tx.ready_topics.add(member.topic_id)
        else:
            tx.make_ready(member.topic_id, (member.message_group,))


def _as_members(group: Group, members: Sequence[MessageGroupKey]) -> str:
    return encode_rows([(group.group_id, each.queue_id, each.topic_id, each.message_group) for each in members])


_PLACES = rows_parameter("places", "group_id", "queue_id")


def _locking(*, skip_locked: bool) -> Select[Any]:
    at = progress.alias("at")
    row = newest(at, at.c.group_id, at.c.queue_id, group_id=_PLACES.c.group_id, queue_id=_PLACES.c.queue_id)
    locked = row.with_for_update(skip_locked=skip_locked).correlate(_PLACES).lateral("locked")
    # One after the other, in the order that was given.
    return select(locked.c.group_id, locked.c.queue_id).select_from(_PLACES.join(locked, true()))


_LOCK = _locking(skip_locked=False)
_LOCK_AVAILABLE = _locking(skip_locked=True)
# Every row names the group: with a constant group SQLite would scan all deliveries of the group.
_NAMED = rows_parameter("places", "group_id", "message_key")


def _around(dialect: Dialect) -> RowQuery[GroupRunRow]:
    return _runs(dialect, groups_of(dialect, _NAMED))


def _runs(dialect: Dialect, named: Subquery) -> RowQuery[GroupRunRow]:
    return RowQuery(GroupRunRow, rows_of_runs(dialect, named, start_key(dialect, named, named.c.group_id)))


_AROUND = PerDialect(_around)
_NAMED_GROUPS = rows_parameter("members", "group_id", "topic_id", "queue_id", text=("message_group",))
_OF_MEMBERS = PerDialect(lambda dialect: _runs(dialect, _NAMED_GROUPS))
_MEMBERS = rows_parameter("members", "group_id", "queue_id", "topic_id", text=("message_group",))
_OPEN = PerDialect(
    lambda dialect: (
        update(behind)
        .where(is_position(dialect, _MEMBERS), behind.c.open_since_ms.is_(None), paused_at(behind).is_(None))
        .values(open_since_ms=bindparam("now_ms", type_=BigInteger))
    )
)
_CLOSE = PerDialect(lambda dialect: update(behind).where(is_position(dialect, _MEMBERS)).values(open_since_ms=None))
_CLOSE_ONE = (
    update(behind)
    .where(
        behind.c.group_id == bindparam("for_group"),
        behind.c.queue_id == bindparam("of_queue"),
        behind.c.message_group == bindparam("of_message_group"),
    )
    .values(open_since_ms=None)
)


def subscriber_of(
    group_id: ColumnElement[int], topic_id: ColumnElement[int], lite_topic: ColumnElement[str]
) -> ColumnElement[str | None]:
    """The client that gets this lite topic, NULL for none; empty for a group whose clients do not choose."""
    chooses = (
        select(literal_column("1"))
        .where(
            consumer_group.c.group_id == group_id,
            consumer_group.c.lite.in_([literal_column(f"'{each}'") for each in CHOOSING]),
        )
        .exists()
    )
    first = first_subscriber(group_id, topic_id, lite_topic)
    return case((chooses, first), else_=literal_column("''")).label("subscriber")


_CLOSED_COLUMNS = ["group_id", "queue_id", "message_group", "topic_id", "next_offset", "subscriber"]
_PLACE_OF_ONE = progress.c.group_id == bindparam("for_group"), progress.c.queue_id == bindparam("of_queue")
_INSERT_CLOSED = insert(behind).from_select(
    _CLOSED_COLUMNS,
    select(
        progress.c.group_id,
        progress.c.queue_id,
        bindparam("of_message_group", type_=Text),
        bindparam("of_topic", type_=BigInteger),
        progress.c.next_offset,
        subscriber_of(
            progress.c.group_id, bindparam("of_topic", type_=BigInteger), bindparam("of_message_group", type_=Text)
        ),
    ).where(*_PLACE_OF_ONE),
)
_INSERT_PAUSED = insert(behind).from_select(
    _CLOSED_COLUMNS,
    select(
        progress.c.group_id,
        progress.c.queue_id,
        PAUSED.c.message_group,
        PAUSED.c.topic_id,
        progress.c.next_offset,
        subscriber_of(progress.c.group_id, PAUSED.c.topic_id, PAUSED.c.message_group),
    )
    .join(PAUSED, and_(PAUSED.c.group_id == progress.c.group_id, PAUSED.c.queue_id == progress.c.queue_id))
    .where(*_PLACE_OF_ONE),
)


def _make_open(dialect: Dialect) -> Executable:
    found, at = joined(dialect, _MEMBERS, progress, "group_id", "queue_id")
    columns = [
        _MEMBERS.c.group_id,
        _MEMBERS.c.queue_id,
        _MEMBERS.c.message_group,
        _MEMBERS.c.topic_id,
        at.c.next_offset,
        subscriber_of(_MEMBERS.c.group_id, _MEMBERS.c.topic_id, _MEMBERS.c.message_group),
        bindparam("now_ms", type_=BigInteger),
    ]
    new = select(*columns).select_from(found).where(any_position(dialect, _MEMBERS).is_(None))
    return insert(behind).from_select([*_CLOSED_COLUMNS, "open_since_ms"], new)


_MAKE_OPEN = PerDialect(_make_open)
