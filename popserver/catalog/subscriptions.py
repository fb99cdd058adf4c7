"""Which group consumes which topic: the progress rows of its queues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from sqlalchemy import bindparam, select, update

from popserver.catalog import progress
from popserver.catalog.lookup import group_not_found, lock, of_another_mode, topic_not_found
from popserver.catalog.queues import QueueRow, queue_rows
from popserver.database.notifications import GROUP, Invalidation
from popserver.database.rows import encode_column, rows_parameter
from popserver.database.schema import consumer_group
from popserver.database.schema import topic as topic_table
from popserver.engine.transaction import Phase, Request, Transaction, carries_out_each
from popserver.model.errors import PopError
from popserver.model.group import ConsumeFrom, Group, Mode
from popserver.model.topic import Topic


@dataclass(frozen=True, slots=True)
class Subscribe(Request[None]):
    """A group's first use of a topic, in a mode that becomes the group's mode."""

    phase: ClassVar = Phase.SUBSCRIBE
    group: Group
    topic: Topic
    mode: Mode


@dataclass(frozen=True, slots=True)
class SetGroupMode(Request[None]):
    """A group's first use, in a mode that becomes the group's mode."""

    phase: ClassVar = Phase.SUBSCRIBE
    group: Group
    mode: Mode


@carries_out_each(SetGroupMode)
def set_group_mode(tx: Transaction, request: SetGroupMode) -> PopError | None:
    """Set the group's mode if it has none. Refused if the group has the other mode."""
    lock(tx)
    return _set_group_mode(tx, request.group, request.mode)


def set_modes(tx: Transaction, groups: Iterable[Group], mode: Mode) -> None:
    """Set the mode of the groups that have none. The others must have this mode already.

    The caller has checked that while it held `CATALOG_LOCK`, which its request declares.
    """
    ids = {each.group_id: each.name for each in groups if each.mode is None}
    if ids:
        names = {"groups": encode_column(sorted(ids)), "new_mode": mode.value}
        for group_id in tx.conn.execute(_SET_GROUP_MODES, names).scalars():
            tx.invalidate(Invalidation(GROUP, *ids[group_id]))


@carries_out_each(Subscribe)
def subscribe(tx: Transaction, request: Subscribe) -> PopError | None:
    """Give the group a progress row for every queue of the topic, beginning at its `consume_from`."""
    lock(tx)
    group, topic = request.group, request.topic
    if refusal := _set_group_mode(tx, group, request.mode):
        return refusal
    if tx.conn.execute(_IS_THERE, {"of_topic": topic.topic_id}).first() is None:
        return topic_not_found(topic.name)
    known = progress.queues_in_topic(tx.conn, group.group_id, topic.topic_id)
    new = [each for each in queue_rows(tx.conn, topic.topic_id) if each.queue_id not in known]
    progress.begin(tx.conn, [(group.group_id, each.queue_id, _start(group, each), 0) for each in new])
    return None


def _set_group_mode(tx: Transaction, group: Group, mode: Mode) -> PopError | None:
    row = tx.conn.execute(select(consumer_group.c.mode).where(consumer_group.c.group_id == group.group_id)).first()
    if row is None:
        return group_not_found(group.name)
    if row.mode is None:
        fixed = update(consumer_group).where(consumer_group.c.group_id == group.group_id)
        tx.conn.execute(fixed.values(mode=mode.value))
        tx.invalidate(Invalidation(GROUP, *group.name))
    elif row.mode != mode:
        return of_another_mode(group.name, Mode(row.mode))
    return None


def _start(group: Group, row: QueueRow) -> int:
    return row.min_offset if group.consume_from is ConsumeFrom.EARLIEST else row.next_offset


_GROUPS = rows_parameter("groups", "group_id")
_SET_GROUP_MODES = (
    update(consumer_group)
    .where(consumer_group.c.group_id.in_(select(_GROUPS.c.group_id)), consumer_group.c.mode.is_(None))
    .values(mode=bindparam("new_mode"))
    .returning(consumer_group.c.group_id)
)
_IS_THERE = select(topic_table.c.topic_id).where(
    topic_table.c.topic_id == bindparam("of_topic"), topic_table.c.deleted_at_ms.is_(None)
)
