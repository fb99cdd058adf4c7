"""Message groups: what changes when a message ends, and when an operator pauses one.

The caller has locked the consumer group's progress in the queues of the message groups (`catalog.progress`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import Connection, Subquery

from popserver.database.dialect import Dialect, PerDialect
from popserver.database.rows import RowQuery, encode_rows, rows_parameter
from popserver.delivery import deliveries
from popserver.delivery.deliveries import Ending
from popserver.delivery.history import as_moved, record
from popserver.engine.transaction import Transaction
from popserver.fifo import moving_positions, order
from popserver.fifo.moving_positions import encode_members
from popserver.fifo.positions import MessageGroupKey
from popserver.fifo.runs import GroupRunRow, groups_of, rows_of_runs
from popserver.fifo.start_offsets import start_key
from popserver.model.group import Group
from popserver.model.states import Event, sources
from popserver.model.topic import queue_of


def runs_around(conn: Connection, group_id: int, keys: Iterable[int]) -> list[GroupRunRow]:
    """The whole runs of the message groups that these messages are in, in order."""
    return _AROUND.of(conn).rows(conn, {"keys": encode_rows([(group_id, key) for key in keys])})


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


def advance_members(
    tx: Transaction, group: Group, members: Collection[MessageGroupKey], acked: Collection[int] = frozenset()
) -> None:
    """Update message groups after messages of them ended or became READY, or the messages `acked` were acked."""
    if members:
        runs = by_member(runs_of(tx.conn, group.group_id, members))
        advance_groups(tx, group, {member: runs.get(member, []) for member in members}, acked)


def advance_groups(
    tx: Transaction, group: Group, runs: dict[MessageGroupKey, list[GroupRunRow]], acked: Collection[int] = frozenset()
) -> None:
    """The same. `runs` has the remaining run of each message group, in order; empty if no message is left."""
    ended: list[GroupRunRow] = []
    marked: list[GroupRunRow] = []
    finished: list[MessageGroupKey] = []
    ready: list[MessageGroupKey] = []
    for member, run in sorted(runs.items()):
        settled = order.advance(run, acked)
        left = run[settled.ended :]
        ended += run[: settled.ended]
        marked += [row for row in left if row.message_key in acked]
        if settled.is_open:
            (ready if left else finished).append(member)
    _commit(tx, group, ended)
    _mark(tx, group, marked)
    if finished:  # their messages behind the scan come next
        open_all(tx, group, encode_members(group.group_id, finished), {member.topic_id for member in finished})
    _open_again(tx, group, ready)


def advance_after_removal(tx: Transaction, group: Group, members: Collection[MessageGroupKey]) -> None:
    """Update message groups after the removal of their first messages, which were READY."""
    runs = by_member(runs_of(tx.conn, group.group_id, members))
    # The groups were open, but the new first message of one may be held.
    moving_positions.close(tx.conn, encode_members(group.group_id, sorted(runs)))
    advance_groups(tx, group, {member: runs.get(member, []) for member in members})


def block_paused(tx: Transaction, group_id: int, members: Sequence[MessageGroupKey]) -> None:
    """Close the positions of paused message groups. Those without a position get a closed one."""
    if members:
        named = encode_members(group_id, members)
        moving_positions.close(tx.conn, named)
        moving_positions.add(tx.conn, named, None)


def _commit(tx: Transaction, group: Group, ended: Sequence[GroupRunRow]) -> None:
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


def open_all(tx: Transaction, group: Group, members: str, topic_ids: Collection[int]) -> None:
    """Open those of these message groups that have a position. `members` are encoded rows: group, queue, topic, name.

    `topic_ids` are the topics to wake; one too many does no harm.
    """
    if moving_positions.open_unpaused(tx.conn, members, tx.now_ms):
        if group.lite is not None:
            for _, _, topic_id, lite_topic in json.loads(members):
                tx.make_ready(topic_id, (lite_topic,))
            return
        for topic_id in topic_ids:
            tx.ready_topics.add(topic_id)


def _open_again(tx: Transaction, group: Group, members: Sequence[MessageGroupKey]) -> None:
    """Open message groups whose first message is READY again. Those without a position get an open one."""
    if not members:
        return
    named = encode_members(group.group_id, members)
    moving_positions.open_unpaused(tx.conn, named, tx.now_ms)
    moving_positions.add(tx.conn, named, tx.now_ms)
    for member in members:
        if group.lite is None:
            tx.ready_topics.add(member.topic_id)
        else:
            tx.make_ready(member.topic_id, (member.message_group,))


def _runs(dialect: Dialect, named: Subquery) -> RowQuery[GroupRunRow]:
    return RowQuery(GroupRunRow, rows_of_runs(dialect, named, start_key(dialect, named, named.c.group_id)))


# Every row names the consumer group: with a constant one, SQLite would scan all deliveries of the consumer group.
_NAMED = rows_parameter("keys", "group_id", "message_key")
_AROUND = PerDialect(lambda dialect: _runs(dialect, groups_of(dialect, _NAMED)))
_NAMED_GROUPS = rows_parameter("members", "group_id", "topic_id", "queue_id", text=("message_group",))
_OF_MEMBERS = PerDialect(lambda dialect: _runs(dialect, _NAMED_GROUPS))
