"""Looking at dead letters: a page of those selected, or one by the id of its message. It changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, func, select

from popserver.catalog import facts as catalog_facts
from popserver.catalog import topics
from popserver.database.rows import RowStatement, encode_rows, rows_parameter
from popserver.database.schema import KEY_SHIFT, dead_letter, message, queue
from popserver.database.schema import topic as topic_table
from popserver.dead_letters.rules import Selection
from popserver.delivery.retry_topic import properties_of
from popserver.engine.transaction import STEP_ROWS_MAX
from popserver.filters import SqlFilter
from popserver.filters import sql as filters_sql
from popserver.messages import read
from popserver.messages.ranges import Work
from popserver.model.errors import MessageNotFound
from popserver.model.group import Group
from popserver.model.message import StoredMessage, id_from_bytes, id_to_bytes
from popserver.model.names import Resource, dead_letter_topic
from popserver.model.topic import offset_of


class _LetterRow(NamedTuple):
    dead_letter_id: int
    copy_key: int
    attempt: int
    reason: str
    dead_at_ms: int
    redrive_state: str | None
    origin_key: int
    plan_id: str | None
    namespace: str | None
    name: str | None
    number: int | None


class DeadLetter(NamedTuple):
    """A dead letter: the facts, and the dead copy.

    `topic`, `queue_number` and `queue_offset` are the origin's; the first two None once they are gone. `redrive_state`
    is empty while it is dead, `plan_id` that of the redrive which sent it back.
    """

    dead_letter_id: int
    group: Resource
    topic: Resource | None
    stored: StoredMessage | None
    attempt: int
    reason: str
    dead_at_ms: int
    redrive_state: str
    queue_number: int | None
    queue_offset: int
    plan_id: str


class DeadLetters(NamedTuple):
    """A page of them, oldest first, and after which id to go on; None where there are no more."""

    letters: list[DeadLetter]
    next_after_id: int | None


def list_dead_letters(
    conn: Connection, group_name: Resource, selection: Selection, after_id: int, limit: int, *, bodies: bool = True
) -> DeadLetters:
    """What fits of a group's dead letters with an id above `after_id`; without `bodies` they are empty."""
    group = catalog_facts.group(conn, group_name)
    page = page_of_letters(conn, group, selection, after_id, limit)
    rows = _OF_IDS.rows(conn, {"ids": encode_rows([(each,) for each in page.ids])})
    kept = _within_an_answer(conn, rows) if bodies else rows
    next_after_id = page.next_after_id if len(kept) == len(rows) else kept[-1].dead_letter_id
    return DeadLetters(_dead_letters(conn, group, kept, bodies=bodies), next_after_id)


def find_dead_letter(conn: Connection, group_name: Resource, message_id: str) -> DeadLetter:
    """A group's dead letter by the id of its message, the newest if several topics had it; raises `MessageNotFound`."""
    group = catalog_facts.group(conn, group_name)
    copies = select(message.c.message_key).where(message.c.message_id == id_to_bytes(message_id))
    wanted = dead_letter.c.group_id == group.group_id, dead_letter.c.copy_key.in_(copies)
    newest = _FACTS.where(*wanted).order_by(dead_letter.c.dead_letter_id.desc()).limit(1)
    rows = [_LetterRow(*row) for row in conn.execute(newest)]
    if not rows:
        raise MessageNotFound(
            f"group '{group_name}' has no dead letter with message id '{read.short(message_id)}';"
            f" list them with: popmq dlq list --group {group_name.name}"
        )
    return _dead_letters(conn, group, rows)[0]


def _within_an_answer(conn: Connection, rows: Sequence[_LetterRow]) -> list[_LetterRow]:
    sizes = {
        row.message_key: row.size
        for row in conn.execute(_SIZES, {"keys": encode_rows([(row.copy_key,) for row in rows])})
    }
    kept = set(read.within_a_page((row.copy_key, sizes[row.copy_key]) for row in rows if row.copy_key in sizes))
    return list(takewhile(lambda row: row.copy_key in kept or row.copy_key not in sizes, rows))


def _dead_letters(
    conn: Connection, group: Group, rows: Sequence[_LetterRow], *, bodies: bool = True
) -> list[DeadLetter]:
    topic = topics.find_topic(conn, dead_letter_topic(group.name))
    copies = read.load(conn, topic, [row.copy_key for row in rows], bodies=bodies) if topic else []
    by_key = {each.message_key: each for each in copies}
    return [
        DeadLetter(
            row.dead_letter_id,
            group.name,
            None if row.name is None else Resource(row.namespace or "", row.name),
            by_key.get(row.copy_key),
            row.attempt,
            row.reason,
            row.dead_at_ms,
            row.redrive_state or "",
            row.number,
            offset_of(row.origin_key),
            row.plan_id or "",
        )
        for row in rows
    ]


# Outer joins: a dead letter outlives the topic it came from.
_FACTS = (
    select(
        *(dead_letter.c[name] for name in _LetterRow._fields[:-3]),
        topic_table.c.namespace,
        topic_table.c.name,
        queue.c.number,
    )
    .outerjoin(topic_table, topic_table.c.topic_id == dead_letter.c.origin_topic_id)
    .outerjoin(queue, queue.c.queue_id == dead_letter.c.origin_key.op(">>")(KEY_SHIFT))
)
_IDS = rows_parameter("ids", "dead_letter_id")
_OF_IDS = RowStatement(
    _LetterRow,
    _FACTS.where(dead_letter.c.dead_letter_id.in_(select(_IDS.c.dead_letter_id))).order_by(
        dead_letter.c.dead_letter_id
    ),
)
_KEYS = rows_parameter("keys", "message_key")
_SIZES = select(message.c.message_key, func.length(message.c.body).label("size")).where(
    message.c.message_key.in_(select(_KEYS.c.message_key))
)


# Which dead letters are meant: a group's, narrowed by facts and by a SQL filter. It reads, and changes nothing.
#
# A page looks at no more than 1,000 dead letters, whatever fits: no look costs more for a larger pile.


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
    """The ids of dead letters that fit, and after which one to go on; None where there are no more."""

    ids: list[int]
    next_after_id: int | None


def page_of_letters(conn: Connection, group: Group, selection: Selection, after_id: int, limit: int) -> LetterPage:
    """Up to `limit` that fit, oldest first, among the next 1,000 after `after_id`; fewer by a costly filter."""
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
    """The id of the group's newest dead letter; 0 where it has none."""
    newest: int | None = conn.execute(_NEWEST, {"for_group": group.group_id}).scalar()
    return newest or 0


def _may_fit(row: _SelectedRow, selection: Selection) -> bool:
    return (
        (selection.redriven_too or row.redrive_state is None)
        and selection.topic_id in (None, row.origin_topic_id)
        and (selection.dead_from_ms is None or row.dead_at_ms >= selection.dead_from_ms)
        and (selection.dead_until_ms is None or row.dead_at_ms < selection.dead_until_ms)
    )


def _judged(conn: Connection, wanted: SqlFilter, rows: Sequence[_SelectedRow]) -> tuple[list[_SelectedRow], int | None]:
    """Those that the filter wants; and after which id it did not go on, where its work was done before."""
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


_SELECTED_FACTS = (
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
_NEXT = RowStatement(_SelectedRow, _SELECTED_FACTS.limit(bindparam("window")))
_NAMED = RowStatement(
    _SelectedRow, _SELECTED_FACTS.where(dead_letter.c.dead_letter_id.in_(select(_IDS.c.dead_letter_id)))
)
_COPIES = RowStatement(
    _LetterCopyRow,
    select(*(message.c[name] for name in _LetterCopyRow._fields)).where(
        message.c.message_key.in_(select(_KEYS.c.message_key))
    ),
)
_NEWEST = select(func.max(dead_letter.c.dead_letter_id)).where(dead_letter.c.group_id == bindparam("for_group"))
