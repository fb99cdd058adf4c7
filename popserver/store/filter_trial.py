"""What a SQL filter would have said of messages that are stored: it reads, and changes nothing.

From the newest message of a queue backwards, a step at a time, so that no statement is long; bodies are not read.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, select

from popserver.domain.filtering import SqlFilter
from popserver.domain.message import id_from_bytes
from popserver.domain.topic import MessageQueue, message_key, offset_of
from popserver.store.schema import message
from popserver.store.work import Work

STEP_MESSAGES = 1_000


class Match(NamedTuple):
    """A message that the filter wants, without its body."""

    message_id: str
    queue_number: int
    offset: int
    stored_at_ms: int
    tag: str | None
    properties: dict[str, str]


class Step(NamedTuple):
    """What became of one step's messages.

    `incomparable` ones are no matches, because a property is not what the expression takes it for. `next_key` is where
    the next step ends, None at the last one.
    """

    examined: int
    incomparable: int
    matches: list[Match]
    next_key: int | None


def end_of(queue: MessageQueue) -> int:
    """Where the first step through a queue ends: beyond its newest message."""
    return message_key(queue.queue_id + 1, 0)


def step(
    conn: Connection, wanted: SqlFilter, queue: MessageQueue, end_key: int, since_ms: int, limit: int, work: Work
) -> Step:
    """Judge up to `limit` messages before `end_key`, newest first; none that was stored before `since_ms`.

    It ends early where the work it may do is done, and judges one message at least.
    """
    limit = min(limit, work.messages(wanted))
    names = {"from_key": message_key(queue.queue_id, 0), "end_key": end_key, "limit": limit}
    rows = conn.execute(_BACKWARDS, names).all()
    recent = [row for row in rows if row.stored_at_ms >= since_ms]
    examined, incomparable, matches = 0, 0, []
    for examined, row in enumerate(recent, start=1):  # noqa: B007 - how many they were is told
        properties = json.loads(row.properties) if row.properties else {}
        verdict = wanted.verdict(row.tag, properties)
        incomparable += verdict is None
        if verdict:
            message_id, offset = id_from_bytes(row.message_id), offset_of(row.message_key)
            matches.append(Match(message_id, queue.number, offset, row.stored_at_ms, row.tag, properties))
        work.spend(wanted.cost(row.tag, properties))
        if work.is_done:
            break
    # Times within a queue hardly ever go back: what lies before an old one is older.
    has_more = len(recent) == limit or examined < len(recent)
    return Step(examined, incomparable, matches, rows[examined - 1].message_key if has_more else None)


_BACKWARDS = (
    select(
        message.c.message_key,
        message.c.message_id,
        message.c.stored_at_ms,
        message.c.tag,
        message.c.properties,
    )
    .where(message.c.message_key >= bindparam("from_key"), message.c.message_key < bindparam("end_key"))
    .order_by(message.c.message_key.desc())
    .limit(bindparam("limit"))
)
