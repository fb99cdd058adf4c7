"""The selection of a group's dead letters, narrowed by facts and by a SQL filter (reads only).

A page reads at most 1,000 dead letters, however many match, so its cost does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, func, select

from popserver.catalog import facts as catalog_facts
from popserver.catalog import lookup, topics
from popserver.database.rows import RowStatement, encode_rows, rows_parameter
from popserver.database.schema import dead_letter, message
from popserver.database.schema import topic as topic_table
from popserver.dead_letters.rules import LetterSelection, Selection
from popserver.delivery.retry_topic import properties_of
from popserver.engine.transaction import STEP_ROWS_MAX
from popserver.filters import SqlFilter
from popserver.filters import sql as filters_sql
from popserver.messages.ranges import Work
from popserver.model.errors import MessagePropertyConflictWithType
from popserver.model.group import Group
from popserver.model.message import id_from_bytes
from popserver.model.names import Resource
from popserver.model.topic import MessageType, Topic


class _SelectedRow(NamedTuple):
    dead_letter_id: int
    origin_topic_id: int
    copy_key: int
    attempt: int
    reason: str
    dead_at_ms: int
    redrive_state: str | None
    topic_name: str | None


class _LetterCopyRow(NamedTuple):
    message_key: int
    message_id: bytes
    tag: str | None
    properties: str | None
    message_group: str | None


class LetterPage(NamedTuple):
    """The ids of matching dead letters, and the id after which to continue (None: no more)."""

    ids: list[int]
    next_after_id: int | None


def page_of_letters(conn: Connection, group: Group, selection: Selection, after_id: int, limit: int) -> LetterPage:
    """Up to `limit` matches, oldest first, among the next 1,000 after `after_id` (fewer with an expensive filter)."""
    names = {"for_group": group.group_id, "after": after_id, "window": STEP_ROWS_MAX}
    if selection.ids:
        rows = _NAMED.rows(conn, names | {"ids": encode_rows([(each,) for each in selection.ids])})
    else:
        rows = _NEXT.rows(conn, names)
    plausible = [row for row in rows if _may_fit(row, selection)]
    fitting, left_at = (
        _judged(conn, filters_sql.parse(selection.where), plausible) if selection.where else (plausible, None)
    )
    ids = [row.dead_letter_id for row in fitting[:limit]]
    if len(fitting) > limit:
        return LetterPage(ids, ids[-1])
    if left_at is not None:
        return LetterPage(ids, left_at)
    return LetterPage(ids, rows[-1].dead_letter_id if len(rows) == STEP_ROWS_MAX else None)


def newest_id(conn: Connection, group: Group) -> int:
    """The id of the group's newest dead letter; 0 if there is none."""
    newest: int | None = conn.execute(_NEWEST, {"for_group": group.group_id}).scalar()
    return newest or 0


class PlanStart(NamedTuple):
    group: Group
    selection: tuple[Selection, int]  # with the id of the newest dead letter that it covers
    target: Topic | None


def plan_start(conn: Connection, of: LetterSelection, target_name: Resource | None) -> PlanStart:
    """The facts for a plan that is made now."""
    group, selection = resolve(conn, of)
    return PlanStart(group, (selection, newest_id(conn, group)), find_target(conn, target_name))


def resolve(conn: Connection, of: LetterSelection) -> tuple[Group, Selection]:
    group = catalog_facts.group(conn, of.group)
    topic_id = None if of.topic is None else catalog_facts.topic_facts(conn, of.topic).topic.topic_id
    return group, Selection(topic_id, of.dead_from_ms, of.dead_until_ms, of.where, of.ids, of.redriven_too)


def page_of(conn: Connection, of: LetterSelection, after_id: int, limit: int) -> tuple[Group, LetterPage]:
    group, selection = resolve(conn, of)
    return group, page_of_letters(conn, group, selection, after_id, limit)


def find_target(conn: Connection, name: Resource | None) -> Topic | None:
    if name is None:
        return None
    topic = topics.find_topic(conn, name)
    if topic is None:
        raise lookup.topic_not_found(name)
    if MessageType.NORMAL not in topic.accepts:
        raise MessagePropertyConflictWithType(
            f"topic '{name}' takes {', '.join(topic.accepts)} messages; a message that is redriven to a topic is NORMAL"
        )
    return topic


def _may_fit(row: _SelectedRow, selection: Selection) -> bool:
    return (
        (selection.redriven_too or row.redrive_state is None)
        and selection.topic_id in (None, row.origin_topic_id)
        and (selection.dead_from_ms is None or row.dead_at_ms >= selection.dead_from_ms)
        and (selection.dead_until_ms is None or row.dead_at_ms < selection.dead_until_ms)
    )


def _judged(conn: Connection, wanted: SqlFilter, rows: Sequence[_SelectedRow]) -> tuple[list[_SelectedRow], int | None]:
    """The rows that the filter accepts, and the id after which it stopped if its work limit was reached (else None)."""
    work = Work()
    fitting: list[_SelectedRow] = []
    start = 0
    while start < len(rows):
        several = rows[start : start + work.messages(wanted)]
        copies = {row.message_key: row for row in _COPIES.rows(conn, {"keys": _keys(several)})}
        for row in several:
            start += 1
            copy = copies.get(row.copy_key)
            if copy is None:
                continue
            facts = _facts(row, copy)
            if wanted.matches(copy.tag, facts):
                fitting.append(row)
            work.spend(wanted.cost(copy.tag, facts))
            if work.is_done and start < len(rows):
                return fitting, row.dead_letter_id
    return fitting, None


def _keys(rows: Sequence[_SelectedRow]) -> str:
    return encode_rows([(row.copy_key,) for row in rows])


def _facts(row: _SelectedRow, copy: _LetterCopyRow) -> Mapping[str, str | None]:
    return {
        **properties_of(copy.properties),
        "REASON": row.reason,
        "ATTEMPT": str(row.attempt),
        "TOPIC": row.topic_name,
        "MESSAGE_ID": id_from_bytes(copy.message_id),
        "MESSAGE_GROUP": copy.message_group,
    }


_IDS = rows_parameter("ids", "dead_letter_id")
_KEYS = rows_parameter("keys", "message_key")
_FACTS = (
    select(
        dead_letter.c.dead_letter_id,
        dead_letter.c.origin_topic_id,
        dead_letter.c.copy_key,
        dead_letter.c.attempt,
        dead_letter.c.reason,
        dead_letter.c.dead_at_ms,
        dead_letter.c.redrive_state,
        topic_table.c.name.label("topic_name"),
    )
    .outerjoin(topic_table, topic_table.c.topic_id == dead_letter.c.origin_topic_id)
    .where(dead_letter.c.group_id == bindparam("for_group"), dead_letter.c.dead_letter_id > bindparam("after"))
    .order_by(dead_letter.c.dead_letter_id)
)
_NEXT = RowStatement(_SelectedRow, _FACTS.limit(bindparam("window")))
_NAMED = RowStatement(_SelectedRow, _FACTS.where(dead_letter.c.dead_letter_id.in_(select(_IDS.c.dead_letter_id))))
_COPIES = RowStatement(
    _LetterCopyRow,
    select(*(message.c[name] for name in _LetterCopyRow._fields)).where(
        message.c.message_key.in_(select(_KEYS.c.message_key))
    ),
)
_NEWEST = select(func.max(dead_letter.c.dead_letter_id)).where(dead_letter.c.group_id == bindparam("for_group"))
