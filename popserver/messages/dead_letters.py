"""Dead letters: which message died in which group, when and why. The message itself is a copy in topic `%DLQ%<group>`.

A group has at most one row for a message, by the message's first key. After a redrive or a reset the row stays, with
this state. If the message dies again, a new row for the same copy replaces it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, bindparam, delete, func, insert, or_, select, update

from popserver.catalog import groups
from popserver.database.newest import newest, unindexed
from popserver.database.rows import RowStatement, encode_column, rows_parameter
from popserver.database.schema import dead_letter
from popserver.engine.transaction import STEP_ROWS_MAX, Transaction
from popserver.engine.upkeep import remove_step
from popserver.model.states import LetterState


class DeadLetterRow(NamedTuple):
    """A dead letter. `redrive_state` is None while it is dead; `plan_id` is the plan that sent it back."""

    dead_letter_id: int
    group_id: int
    origin_key: int
    origin_topic_id: int
    copy_key: int
    attempt: int
    reason: str
    dead_at_ms: int
    redrive_state: str | None
    plan_id: str | None


# Reads.


def following(conn: Connection, group_id: int, after_id: int, limit: int) -> list[DeadLetterRow]:
    """The group's next `limit` dead letters after this id, oldest first."""
    return _FOLLOWING.rows(conn, {"for_group": group_id, "after": after_id, "limit": limit})


def named(conn: Connection, group_id: int, ids: Collection[int]) -> list[DeadLetterRow]:
    """The group's dead letters with these ids, oldest first."""
    return _NAMED.rows(conn, {"for_group": group_id, "ids": encode_column(ids)})


def newest_id(conn: Connection, group_id: int) -> int:
    """The id of the group's newest dead letter; 0 if there is none."""
    return conn.execute(_NEWEST, {"for_group": group_id}).scalar() or 0


def of_message(conn: Connection, group_id: int, origin_key: int) -> DeadLetterRow | None:
    """The group's dead letter of the message with this first key."""
    return _OF_MESSAGE.first(conn, {"for_group": group_id, "for_origin": origin_key})


def of_messages(conn: Connection, group_id: int, origin_keys: Collection[int]) -> list[DeadLetterRow]:
    """The group's dead letters of the messages with these first keys."""
    return _OF_MESSAGES.rows(conn, {"for_group": group_id, "origins": encode_column(origin_keys)})


def of_copies(conn: Connection, copy_keys: Collection[int]) -> dict[int, DeadLetterRow]:
    """The dead letters of these messages of dead-letter topics, by the copy's key."""
    return {row.copy_key: row for row in _OF_COPIES.rows(conn, {"copies": encode_column(copy_keys)})}


def count(conn: Connection) -> int:
    """How many messages are dead letters of existing groups now."""
    return conn.execute(_COUNT).scalar_one()


def counts_by_topic(*wanted: ColumnElement[bool]) -> Select[tuple[int, int, int]]:
    """How many messages are dead letters now, as `letters`, by the ids of their group and topic."""
    columns = dead_letter.c.group_id, dead_letter.c.origin_topic_id
    counted = select(*columns, func.count().label("letters"))
    return counted.where(dead_letter.c.redrive_state.is_(None), *wanted).group_by(*columns)


class NewLetters(NamedTuple):
    """A group's newest dead letters: how many, and the id of the last one."""

    group_id: int
    letters: int
    last_id: int


def since(conn: Connection, since_ms: int, limit: int) -> list[NewLetters]:
    """The dead letters since then that are not sent back, by group; of all groups at most `limit` are counted."""
    return _SINCE.rows(conn, {"since_ms": since_ms, "limit": limit})


def reasons(conn: Connection, ids: Collection[int]) -> dict[int, str]:
    """Why the messages with these ids of dead letters died."""
    return {row.dead_letter_id: row.reason for row in conn.execute(_REASONS, {"ids": encode_column(ids)})}


# Changes.


def lock(tx: Transaction, group_id: int, ids: Collection[int]) -> list[DeadLetterRow]:
    """Lock the group's dead letters with these ids, without those that another transaction has locked."""
    return _LOCK.rows(tx.conn, {"for_group": group_id, "ids": encode_column(ids)})


def lock_of_messages(tx: Transaction, group_id: int, origin_keys: Collection[int]) -> dict[int, DeadLetterRow]:
    """Lock the group's dead letters of messages that die again, by first key. Waits for other transactions."""
    rows = _LOCK_OF_MESSAGES.rows(tx.conn, {"for_group": group_id, "origins": encode_column(origin_keys)})
    return {row.origin_key: row for row in rows}


def add(tx: Transaction, letters: Sequence[Mapping[str, int | str]]) -> None:
    """Add dead letters. Their ids must become visible in order, so on Postgres the caller holds the lock of
    `delivery.dead_letter_topic`."""
    tx.conn.execute(insert(dead_letter), letters)


def remove(tx: Transaction, ids: Collection[int]) -> None:
    """Remove locked dead letters."""
    tx.conn.execute(_REMOVE, {"ids": encode_column(ids)})


def mark_redriven(tx: Transaction, ids: Collection[int], plan_id: str) -> None:
    """Mark locked dead letters that the plan has sent back."""
    tx.conn.execute(_MARK_REDRIVEN, {"ids": encode_column(ids), "by_plan": plan_id})


def reset(tx: Transaction, group_id: int, first: int, end: int) -> None:
    """Mark the group's dead letters of messages with first <= key < end: a reset makes these messages READY again.

    Each step reads a page of ids first: a planner may run a subquery with a LIMIT again for each row.
    """
    names = {"for_group": group_id, "first": first, "end": end, "limit": STEP_ROWS_MAX, "after": 0}
    while ids := tx.conn.execute(_LOCK_TO_RESET, names).scalars().all():
        tx.conn.execute(_RESET, {"ids": encode_column(ids)})
        names["after"] = ids[-1]


def forget_group(conn: Connection, group_id: int) -> int:
    """Remove a step of the dead letters of a deleted group; returns how many."""
    return remove_step(conn, dead_letter.c.dead_letter_id, dead_letter.c.group_id == group_id)


def forget_copies(conn: Connection, first: int, end: int) -> int:
    """Remove a step of the dead letters whose copies have first <= key < end; returns how many."""
    key = dead_letter.c.copy_key
    return remove_step(conn, key, key >= first, key < end)


# The index `dead_letter_of_group` finds the pages of a group, `dead_letter_once` the dead letter of a message in a
# group, and `dead_letter_copy` the dead letter of a copy.
OF_GROUP = dead_letter.c.group_id == bindparam("for_group")
_IDS = rows_parameter("ids", "dead_letter_id")
_HAS_ID = dead_letter.c.dead_letter_id.in_(select(_IDS.c.dead_letter_id))
# What a redrive records of the dead letters with the ids of the parameter `ids`.
_COLUMNS = [dead_letter.c[name] for name in DeadLetterRow._fields]
RECORDED = select(*_COLUMNS[:-2]).where(_HAS_ID).subquery("letter")
_ROWS = select(*_COLUMNS)
_FOLLOWING = RowStatement(
    DeadLetterRow,
    _ROWS.where(OF_GROUP, dead_letter.c.dead_letter_id > bindparam("after"))
    .order_by(dead_letter.c.dead_letter_id)
    .limit(bindparam("limit")),
)
# In the order of ids, so that transactions that lock dead letters do not deadlock. No index has this expression: an
# index with the order too would tempt Postgres to read all dead letters of the group, instead of the given keys.
_IN_ORDER = unindexed(dead_letter.c.dead_letter_id)
_OF_IDS = _ROWS.where(_HAS_ID, unindexed(dead_letter.c.group_id) == bindparam("for_group")).order_by(_IN_ORDER)
_NAMED = RowStatement(DeadLetterRow, _OF_IDS)
_LOCK = RowStatement(DeadLetterRow, _OF_IDS.with_for_update(skip_locked=True))
_NEWEST = select(func.max(dead_letter.c.dead_letter_id)).where(OF_GROUP)
# A range backward, for which only `dead_letter_once` has the order. With an equality Postgres may take another index,
# and read all dead letters of the group.
_OF_MESSAGE = RowStatement(
    DeadLetterRow,
    newest(dead_letter, *_COLUMNS, group_id=bindparam("for_group"), origin_key=bindparam("for_origin")),
)
_ORIGINS = rows_parameter("origins", "origin_key")
_OF_ORIGINS = _ROWS.where(OF_GROUP, dead_letter.c.origin_key.in_(select(_ORIGINS.c.origin_key)))
_OF_MESSAGES = RowStatement(DeadLetterRow, _OF_ORIGINS)
_LOCK_OF_MESSAGES = RowStatement(DeadLetterRow, _OF_ORIGINS.order_by(_IN_ORDER).with_for_update())
_COPIES = rows_parameter("copies", "copy_key")
_OF_COPIES = RowStatement(DeadLetterRow, _ROWS.where(dead_letter.c.copy_key.in_(select(_COPIES.c.copy_key))))
_COUNT = (
    select(func.count(dead_letter.c.dead_letter_id))
    .join(groups.EXISTING, groups.EXISTING.c.group_id == dead_letter.c.group_id)
    .where(dead_letter.c.redrive_state.is_(None))
)
_newest_ones = (
    select(dead_letter.c.group_id, dead_letter.c.dead_letter_id)
    .where(dead_letter.c.dead_at_ms >= bindparam("since_ms"), dead_letter.c.redrive_state.is_(None))
    .order_by(dead_letter.c.dead_at_ms.desc())
    .limit(bindparam("limit"))
    .subquery("newest_ones")
)
_SINCE = RowStatement(
    NewLetters,
    select(
        _newest_ones.c.group_id,
        func.count().label("letters"),
        func.max(_newest_ones.c.dead_letter_id).label("last_id"),
    ).group_by(_newest_ones.c.group_id),
)
_REASONS = select(dead_letter.c.dead_letter_id, dead_letter.c.reason).where(_HAS_ID)
_REMOVE = delete(dead_letter).where(_HAS_ID)
_MARK_REDRIVEN = (
    update(dead_letter)
    .where(_HAS_ID, dead_letter.c.redrive_state.is_(None))
    .values(redrive_state=LetterState.REDRIVEN.value, plan_id=bindparam("by_plan"))
)
_LOCK_TO_RESET = (
    select(dead_letter.c.dead_letter_id)
    .where(
        OF_GROUP,
        dead_letter.c.dead_letter_id > bindparam("after"),
        dead_letter.c.origin_key >= bindparam("first"),
        dead_letter.c.origin_key < bindparam("end"),
        or_(dead_letter.c.redrive_state.is_(None), dead_letter.c.redrive_state == LetterState.REDRIVEN.value),
    )
    .order_by(dead_letter.c.dead_letter_id)
    .limit(bindparam("limit"))
    .with_for_update()
)
_RESET = update(dead_letter).where(_HAS_ID).values(redrive_state=LetterState.RESET.value)
