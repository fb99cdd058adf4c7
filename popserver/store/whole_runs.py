"""Acks that end whole runs: what nearly every ack in message groups is, and cheaper than to look at each run.

Where a receipt is not current, or something of a run is left, nothing is done: `store.message_groups` decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import and_, bindparam, case, delete, distinct, func, select, tuple_

from popserver.domain.delivery import Event, sources
from popserver.domain.group import Group
from popserver.domain.receipt import Receipt
from popserver.domain.topic import queue_of
from popserver.store import message_groups
from popserver.store.given import encode_rows, rows_as_json, rows_parameter
from popserver.store.packed import RowStatement
from popserver.store.schema import delivery, in_states
from popserver.store.transaction import Transaction


class _Runs(NamedTuple):
    """How many deliveries are held, and of their runs: the length of all, the members, and their topics."""

    held: int
    all_of_runs: int
    members: str
    topics: int
    first_topic: int
    last_topic: int


def end(tx: Transaction, group: Group, receipts: Sequence[Receipt]) -> bool:
    """Commit what the receipts hold if it is all there is of their runs; the places are the caller's.

    False, and nothing done, where it is not, or where each ack leaves a row in the group's history.
    """
    if group.history.keeps(Event.ACK):
        return False
    # Receipts of one hold may differ in what they say of its end; counted twice, one would stand for another message.
    named = {(group.group_id, each.message_key, each.hold_id, queue_of(each.message_key)) for each in receipts}
    holds = encode_rows(sorted(named))
    row = _LOOK.first(tx.conn, {"holds": holds, "now_ms": tx.now_ms})
    assert row is not None, "an aggregate has one row"
    if row.held < len(named) or row.all_of_runs > row.held or row.topics > 2:
        return False
    message_groups.open_all(tx, row.members, {row.first_topic, row.last_topic})
    tx.conn.execute(_END, {"holds": holds})
    return True


# The rows by their keys alone, whatever else is asked of them: what Postgres knows of a table whose rows come and go is
# out of date, and any further condition might lead it to begin with that one.
_HOLDS = rows_parameter("holds", "group_id", "message_key", "hold_id", "queue_id")
_ROWS = (
    select(
        delivery.c.group_id,
        _HOLDS.c.queue_id,
        delivery.c.topic_id,
        delivery.c.message_group,
        and_(
            delivery.c.hold_id == _HOLDS.c.hold_id,
            in_states(delivery.c.state, *sources(Event.ACK)),
            delivery.c.visible_at_ms > bindparam("now_ms"),
            delivery.c.message_group.is_not(None),
        ).label("is_held"),
    )
    .select_from(_HOLDS)
    .join(delivery, and_(delivery.c.group_id == _HOLDS.c.group_id, delivery.c.message_key == _HOLDS.c.message_key))
    # Skips rows that a user's own transaction has locked, instead of waiting.
    .with_for_update(of=delivery, skip_locked=True)
    .cte("rows_of_receipts")
)
_HELD = select(func.coalesce(func.sum(case((_ROWS.c.is_held, 1), else_=0)), 0))
_TOUCHED = select(_ROWS.c.group_id, _ROWS.c.queue_id, _ROWS.c.topic_id, _ROWS.c.message_group).distinct().cte("touched")
_each = delivery.alias("each_of_run")
_RUN_LENGTH = (
    select(func.count())
    .select_from(_each)
    .where(
        _each.c.group_id == _TOUCHED.c.group_id,
        _each.c.topic_id == _TOUCHED.c.topic_id,
        _each.c.message_group == _TOUCHED.c.message_group,
    )
    .correlate(_TOUCHED)
    .scalar_subquery()
)
_LOOK = RowStatement(
    _Runs,
    select(
        _HELD.scalar_subquery().label("held"),
        func.sum(_RUN_LENGTH).label("all_of_runs"),
        rows_as_json(*_TOUCHED.c).label("members"),
        func.count(distinct(_TOUCHED.c.topic_id)).label("topics"),
        func.min(_TOUCHED.c.topic_id).label("first_topic"),
        func.max(_TOUCHED.c.topic_id).label("last_topic"),
    ),
)
_END = delete(delivery).where(
    tuple_(delivery.c.group_id, delivery.c.message_key).in_(select(_HOLDS.c.group_id, _HOLDS.c.message_key))
)
