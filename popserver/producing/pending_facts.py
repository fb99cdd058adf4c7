"""Reads of pending messages: whole messages, a topic's schedule, messages with a key; and how many there are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from sqlalchemy import Connection, and_, bindparam, case, func, select, tuple_

from popserver.catalog import facts as catalog_facts
from popserver.catalog import topics
from popserver.database.rows import RowStatement, encode_column, rows_parameter
from popserver.database.schema import IS_DELAYED, IS_HALF, pending
from popserver.messages.by_key import MessageRow, stored_message
from popserver.messages.pending_messages import PENDING_COLUMNS, PendingRow
from popserver.messages.read import within_a_page
from popserver.model.message import StoredMessage, id_from_bytes
from popserver.model.names import Resource
from popserver.model.states import PendingKind
from popserver.model.topic import Topic

KEY_MATCHES_MAX = 1_000


class ScheduledMessage(NamedTuple):
    """A pending message. `due_at_ms` is when it enters its queue, or when its next check is due."""

    pending_id: int
    stored: StoredMessage
    kind: PendingKind
    due_at_ms: int
    checks: int
    transaction_id: str


class After(NamedTuple):
    """The end of a page of a schedule: the due time and the pending id of its last entry."""

    due_at_ms: int
    pending_id: int


def stored_pending(conn: Connection, topic_of: Mapping[int, Topic]) -> dict[int, StoredMessage]:
    """Pending messages by pending id, as they were sent. Their queue id and offset are 0: they are in no queue yet."""
    if not topic_of:
        return {}
    rows = conn.execute(_MESSAGES, {"ids": encode_column(topic_of)})
    return {
        pending_id: stored_message(MessageRow(0, *rest), topic_of[pending_id], _NO_QUEUE) for pending_id, *rest in rows
    }


def scheduled(conn: Connection, name: Resource, after: After, limit: int) -> list[ScheduledMessage]:
    """A page of a topic's pending messages by due time, with at most 16 MiB of bodies. Raises `TopicNotFound`."""
    topic = catalog_facts.topic(conn, name)
    names = {"of_topic": topic.topic_id, "after_due": after.due_at_ms, "after_id": after.pending_id, "limit": limit}
    page = within_a_page((row, row.size) for row in _SCHEDULE.rows(conn, names))
    stored = stored_pending(conn, {row.pending_id: topic for row in page})
    return [
        ScheduledMessage(
            row.pending_id,
            stored[row.pending_id],
            PendingKind(row.kind),
            row.due_at_ms,
            row.checks,
            row.transaction_id or "",
        )
        for row in page
        if row.pending_id in stored
    ]


def find(conn: Connection, name: Resource | None, message_id: bytes) -> PendingRow | None:
    """A pending message with this id, in the topic or (None) in any."""
    rows = _OF_ID.rows(conn, {"of_id": message_id})
    there = topics.topics_by_id(conn, {row.topic_id for row in rows}) if rows else {}
    found = (row for row in rows if row.topic_id in there)
    return next((row for row in found if name in (None, there[row.topic_id].name)), None)


def pending_with_key(conn: Connection, name: Resource, key: str) -> list[str]:
    """The ids of the first 1,000 pending messages of the topic that have the key. Scans all its pending messages."""
    topic = catalog_facts.topic(conn, name)
    rows = conn.execute(_WITH_TEXT, {"of_topic": topic.topic_id, "written": _written(key)})
    found = (id_from_bytes(bytes(row.message_id)) for row in rows if key in json.loads(row.listed))
    return [each for each, _ in zip(found, range(KEY_MATCHES_MAX), strict=False)]


def counts(conn: Connection) -> dict[PendingKind, dict[int, int]]:
    """How many messages of each kind are pending, by topic id."""
    return {kind: {row[0]: row[1] for row in conn.execute(statement)} for kind, statement in _COUNTS.items()}


def due_within(conn: Connection, now_ms: int, ends_ms: Sequence[int]) -> list[int]:
    """How many delayed messages are due after `now_ms` up to the first end, from there up to the second, and so on."""
    bounds = [now_ms, *ends_ms]
    between = (and_(pending.c.due_at_ms > begin, pending.c.due_at_ms <= end) for begin, end in pairwise(bounds))
    sums = select(*(func.sum(case((each, 1), else_=0)) for each in between))
    within = pending.c.due_at_ms > now_ms, pending.c.due_at_ms <= bounds[-1]
    row = conn.execute(sums.where(IS_DELAYED, *within)).one()
    return [int(count or 0) for count in row]


def overdue(conn: Connection, now_ms: int) -> tuple[int, int | None]:
    """How many delayed messages are due and in no queue yet, and when the first of them was due; 0: at once."""
    count, first_ms = conn.execute(_OVERDUE, {"now_ms": now_ms}).one()
    return count, first_ms


def _written(key: str) -> str:
    """The LIKE pattern for the key as JSON has it, with LIKE's wildcards escaped."""
    written = json.dumps(key, ensure_ascii=False)
    return "%" + written.replace("/", "//").replace("%", "/%").replace("_", "/_") + "%"


_NO_QUEUE = {0: 0}
_OVERDUE = select(func.count(), func.min(pending.c.due_at_ms)).where(
    IS_DELAYED, pending.c.due_at_ms <= bindparam("now_ms")
)
_COUNTS = {
    kind: select(pending.c.topic_id, func.count()).where(is_kind).group_by(pending.c.topic_id)
    for kind, is_kind in ((PendingKind.DELAY, IS_DELAYED), (PendingKind.HALF, IS_HALF))
}
_IDS = rows_parameter("ids", "pending_id")
# All columns of a `MessageRow` except the message key.
_MESSAGES = select(pending.c.pending_id, *(pending.c[name] for name in MessageRow._fields[1:])).join(
    _IDS, _IDS.c.pending_id == pending.c.pending_id
)
_SCHEDULED = select(*PENDING_COLUMNS)
_OF_ID = RowStatement(PendingRow, _SCHEDULED.where(pending.c.message_id == bindparam("of_id")))
_SCHEDULE = RowStatement(
    PendingRow,
    _SCHEDULED.where(
        pending.c.topic_id == bindparam("of_topic"),
        # A condition of its own for the index: SQLite uses no index for the comparison of row values below.
        pending.c.due_at_ms >= bindparam("after_due"),
        tuple_(pending.c.due_at_ms, pending.c.pending_id) > tuple_(bindparam("after_due"), bindparam("after_id")),
    )
    .order_by(pending.c.due_at_ms, pending.c.pending_id)
    .limit(bindparam("limit")),
)
_WITH_TEXT = (
    select(pending.c.message_id, pending.c["keys"].label("listed"))
    .where(pending.c.topic_id == bindparam("of_topic"), pending.c["keys"].like(bindparam("written"), escape="/"))
    .order_by(pending.c.pending_id)
)
