"""Redrives: a record of each dead letter that a plan sends back.

A message that was redriven only to its group has its delivery at another key than its first key: at the key of the copy
in the dead-letter topic, or of a new message in the group's retry topic. Its record has both keys. A record stays when
its dead letter is removed, until its group is removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import (
    Connection,
    FromClause,
    LargeBinary,
    and_,
    bindparam,
    cast,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.sql.dml import Insert

from popserver.catalog import redrive_plans
from popserver.database.newest import unindexed
from popserver.database.rows import RowStatement, encode_column, encode_rows, rows_parameter
from popserver.database.schema import redrive
from popserver.engine.transaction import STEP_ROWS_MAX, Transaction
from popserver.messages.dead_letters import RECORDED, DeadLetterRow
from popserver.model.states import Change, RedriveState

DIED_AGAIN = "it died again, and was purged"


class RedriveOrigin(NamedTuple):
    """The origin of a redriven message: its first key, the topic of this key, and the redrive plan."""

    redriven_key: int
    origin_key: int
    origin_topic_id: int
    plan_id: str


class RedriveRow(NamedTuple):
    """The key to which a plan has sent a dead letter; `target_topic_id` None: only back to the group."""

    plan_id: str
    dead_letter_id: int
    redriven_key: int
    redriven_at_ms: int
    target_topic_id: int | None


# The keys of redriven messages.


def origins_of(conn: Connection, keys: Sequence[int]) -> dict[int, RedriveOrigin]:
    """The origins of the redriven messages with these keys, for all groups. After several redrives, of the last one."""
    return {row.redriven_key: row for row in _ORIGINS_OF.rows(conn, {"keys": encode_column(keys)})}


def origins_in_group(conn: Connection, group_id: int, keys: Sequence[int]) -> dict[int, RedriveOrigin]:
    """The same for one group."""
    names = {"for_group": group_id, "keys": encode_column(keys)}
    return {row.redriven_key: row for row in _ORIGINS_IN_GROUP.rows(conn, names)}


def redriven_keys_of(conn: Connection, origin_key: int) -> list[int]:
    """The keys of a message after redrives to its groups, the oldest first."""
    return list(conn.execute(_REDRIVEN_KEYS, {"for_origin": origin_key}).scalars())


def pages_of_redriven_keys(conn: Connection, group_id: int, first: int, end: int) -> Iterator[list[int]]:
    """The keys of the group's redriven messages whose first keys are in first <= key < end, in steps.

    A message may have been redriven more than once.
    """
    names = {"for_group": group_id, "first": first, "end": end, "limit": STEP_ROWS_MAX, "after_redriven": -1}
    while page := conn.execute(_PAGE_ORIGINS_OF, names).all():
        yield [row.redriven_key for row in page]
        names |= {"first": page[-1].origin_key, "after_redriven": page[-1].redriven_key}


def of_letter(conn: Connection, letter: DeadLetterRow) -> RedriveRow | None:
    """The last redrive of this dead letter; None if there was none."""
    rows = of_letters(conn, [letter])
    return rows[0] if rows else None


def of_letters(conn: Connection, letters: Iterable[DeadLetterRow]) -> list[RedriveRow]:
    """The same for several dead letters, without those that were not redriven."""
    rows = [(each.dead_letter_id, each.plan_id) for each in letters if each.plan_id is not None]
    return _OF_LETTERS.rows(conn, {"letters": encode_rows(rows)}) if rows else []


# The records of a plan.


def recording(letters: FromClause) -> Insert:
    """A statement that records those of `letters` that the plan `:of_plan` has not recorded yet.

    `letters` has the columns of `dead_letters.RECORDED`, and `message_id`. The plan's group, reason and target are the
    parameters `for_group`, `why` and `target`.
    """
    # No EXISTS: Postgres may read all records of the plan for it.
    is_recorded = (
        select(redrive.c.dead_letter_id)
        .where(redrive.c.plan_id == _plan_id, redrive.c.dead_letter_id == letters.c.dead_letter_id)
        .scalar_subquery()
    )
    found = select(
        _plan_id,
        *(letters.c["reason" if name == "dead_reason" else name] for name in _RECORDED),
        literal_column(f"'{RedriveState.PLANNED}'"),
        literal_column(f"'{Change.NONE}'"),
        bindparam("why", type_=redrive.c.reason.type),
        bindparam("target", type_=redrive.c.target_topic_id.type),
    ).where(
        # No index fits the group: the dead letters are found by their ids.
        unindexed(letters.c.group_id) == bindparam("for_group"),
        is_recorded.is_(None),
    )
    names = ["plan_id", *_RECORDED, "state", "change", "reason", "target_topic_id"]
    return insert(redrive).from_select(names, found)


def next_planned(conn: Connection, plan_id: str, limit: int) -> Sequence[int]:
    """The ids of the next dead letters that the plan has neither redriven nor skipped."""
    return conn.execute(_NEXT, {"of_plan": plan_id, "limit": limit}).scalars().all()


def ended_among(conn: Connection, plan_id: str, ids: Collection[int]) -> set[int]:
    """Those of these dead letters that the plan has redriven or skipped."""
    return set(conn.execute(_ENDED_AMONG, {"of_plan": plan_id, "ids": encode_column(ids)}).scalars())


class Redriven(NamedTuple):
    """A dead letter that was redriven to `key`. `message_id` None: the message keeps its id."""

    dead_letter_id: int
    change: Change
    reason: str
    key: int
    message_id: bytes | None


def note_redriven(tx: Transaction, plan_id: str, done: Iterable[Redriven]) -> None:
    """Note that the plan redrives these recorded dead letters now."""
    rows = [
        {
            "of_plan": plan_id,
            "of_id": each.dead_letter_id,
            "to_change": each.change.value,
            "because": each.reason,
            "stands_at": each.key,
            "new_id": each.message_id,
            "now_ms": tx.now_ms,
        }
        for each in done
    ]
    tx.conn.execute(_NOTE_REDRIVEN, rows)


def note_skipped(tx: Transaction, plan_id: str, notes: Mapping[int, str]) -> None:
    """Note why the plan skips these dead letters; `notes` are by id."""
    if notes:
        tx.conn.execute(_SKIP, [{"of_plan": plan_id, "of_id": each, "why": why} for each, why in notes.items()])


def note_purged(tx: Transaction, ids: Collection[int]) -> None:
    """Note that messages died again after redrives, because their new dead letters are purged now.

    Without the dead letter, the record of a redrive would look like the record of a consumed message.
    """
    died = tx.conn.execute(_DIED_AS, {"ids": encode_column(ids)}).all()
    if died:
        tx.conn.execute(_NOTE, [{"of_plan": row.plan_id, "of_id": row.dead_letter_id} for row in died])


def forget_group(conn: Connection, group_id: int) -> int:
    """Remove a step of one plan of a deleted group, the records first: only the plan finds them."""
    plan_id = redrive_plans.any_of_group(conn, group_id)
    if plan_id is None:
        return 0
    of_plan = {"of_plan": plan_id}
    ids = conn.execute(_ITS_RECORDS, of_plan).scalars().all()
    if ids:
        return conn.execute(_END_RECORDS, of_plan | {"last": ids[-1]}).rowcount
    return redrive_plans.forget(conn, plan_id)


# The columns of a record that repeat the dead letter.
_RECORDED = "dead_letter_id group_id origin_key origin_topic_id message_id attempt dead_reason dead_at_ms".split()
_plan_id = bindparam("of_plan", type_=redrive.c.plan_id.type)
_KEYS = rows_parameter("keys", "message_key")
_TO_ITS_GROUP = and_(redrive.c.redriven_key.is_not(None), redrive.c.target_topic_id.is_(None))
# The messages that were redriven only to their group: their first keys and their new keys. The index `redrive_of_key`
# finds them by `redriven_key`, `redrive_of_origin` by `origin_key`, both also with `group_id`.
REDRIVEN = (
    select(redrive.c.group_id, redrive.c.origin_key, redrive.c.redriven_key, redrive.c.dead_letter_id)
    .where(_TO_ITS_GROUP)
    .subquery("redriven_message")
)
# The new keys of redriven messages, also in target topics; the index `redrive_of_key` has both columns.
REDRIVEN_TO = (
    select(redrive.c.group_id, redrive.c.redriven_key)
    .where(redrive.c.redriven_key.is_not(None))
    .subquery("redriven_to")
)
_ORIGINS = (
    select(*(redrive.c[name] for name in RedriveOrigin._fields))
    .select_from(_KEYS)
    .order_by(redrive.c.redriven_at_ms, redrive.c.dead_letter_id)
)
_IS_AT = and_(redrive.c.redriven_key == _KEYS.c.message_key, _TO_ITS_GROUP)
_ORIGINS_OF = RowStatement(RedriveOrigin, _ORIGINS.join(redrive, _IS_AT))
_ORIGINS_IN_GROUP = RowStatement(
    RedriveOrigin, _ORIGINS.join(redrive, and_(_IS_AT, redrive.c.group_id == bindparam("for_group")))
)
_REDRIVEN_KEYS = (
    select(redrive.c.redriven_key)
    .where(redrive.c.origin_key == bindparam("for_origin"), _TO_ITS_GROUP)
    .order_by(redrive.c.redriven_at_ms, redrive.c.dead_letter_id)
)
_PAGE_ORIGINS_OF = (
    select(redrive.c.origin_key, redrive.c.redriven_key)
    .where(
        redrive.c.group_id == bindparam("for_group"),
        redrive.c.origin_key >= bindparam("first"),
        redrive.c.origin_key < bindparam("end"),
        _TO_ITS_GROUP,
        or_(redrive.c.origin_key > bindparam("first"), redrive.c.redriven_key > bindparam("after_redriven")),
    )
    .order_by(redrive.c.origin_key, redrive.c.redriven_key)
    .limit(bindparam("limit"))
)
_LETTERS = rows_parameter("letters", "dead_letter_id", text=("plan_id",))
_OF_LETTERS = RowStatement(
    RedriveRow,
    select(*(redrive.c[name] for name in RedriveRow._fields))
    .select_from(_LETTERS)
    .join(
        redrive,
        and_(redrive.c.plan_id == _LETTERS.c.plan_id, redrive.c.dead_letter_id == _LETTERS.c.dead_letter_id),
    )
    .where(redrive.c.redriven_key.is_not(None)),
)
_IDS = rows_parameter("ids", "dead_letter_id")
# Records of a plan are found by the primary key, and the next planned ones by `redrive_planned`.
_OF_PLAN = redrive.c.plan_id == bindparam("of_plan")
_NEXT = (
    select(redrive.c.dead_letter_id)
    .where(_OF_PLAN, redrive.c.state == literal_column(f"'{RedriveState.PLANNED}'"))
    .order_by(redrive.c.dead_letter_id)
    .limit(bindparam("limit"))
)
_ENDED_AMONG = select(redrive.c.dead_letter_id).where(
    _OF_PLAN,
    redrive.c.dead_letter_id.in_(select(_IDS.c.dead_letter_id)),
    redrive.c.state != literal_column(f"'{RedriveState.PLANNED}'"),
)
# One row after the other: in a join with parameter rows, SQLite would scan the whole plan, and for each of its rows all
# parameter rows.
_ONE = _OF_PLAN, redrive.c.dead_letter_id == bindparam("of_id")
_NOTE_REDRIVEN = (
    update(redrive)
    .where(*_ONE)
    .values(
        state=RedriveState.REDRIVEN.value,
        change=bindparam("to_change"),
        reason=bindparam("because"),
        redriven_key=bindparam("stands_at"),
        redriven_message_id=func.coalesce(cast(bindparam("new_id"), LargeBinary), redrive.c.message_id),
        redriven_at_ms=bindparam("now_ms"),
    )
)
_SKIP = update(redrive).where(*_ONE).values(state=RedriveState.SKIPPED.value, note=bindparam("why"))
_NOTE = update(redrive).where(*_ONE).values(note=literal_column(f"'{DIED_AGAIN}'"))
_DIED_AS = (
    select(redrive.c.plan_id, redrive.c.dead_letter_id)
    .select_from(RECORDED)
    .join(
        redrive,
        and_(
            redrive.c.group_id == RECORDED.c.group_id,
            redrive.c.dead_letter_id < RECORDED.c.dead_letter_id,
            redrive.c.state == literal_column(f"'{RedriveState.REDRIVEN}'"),
            or_(
                and_(redrive.c.origin_key == RECORDED.c.origin_key, redrive.c.target_topic_id.is_(None)),
                and_(redrive.c.redriven_key == RECORDED.c.origin_key, redrive.c.target_topic_id.is_not(None)),
            ),
        ),
    )
)
_ITS_RECORDS = select(redrive.c.dead_letter_id).where(_OF_PLAN).order_by(redrive.c.dead_letter_id).limit(STEP_ROWS_MAX)
_END_RECORDS = delete(redrive).where(_OF_PLAN, redrive.c.dead_letter_id <= bindparam("last"))
