"""Find stored messages by key, tag, SQL filter and time, newest first.

With a key the index of keys is read, at most `EXAMINED_MAX` of its rows. Without one, the newest messages of one topic
are examined (`filter_trial`).
"""

from __future__ import annotations

import json
from functools import partial
from itertools import chain
from typing import NamedTuple

from sqlalchemy import Connection, and_, select

from popserver.catalog.lookup import all_queue_rows, queue_rows
from popserver.database.rows import RowStatement, encode_rows, rows_parameter
from popserver.database.schema import KEY_SHIFT, message, queue
from popserver.database.schema import topic as topic_table
from popserver.engine.reader import Reader
from popserver.filters import SqlFilter
from popserver.filters import sql as filters_sql
from popserver.inspection import filter_trial
from popserver.inspection.filter_trial import Match
from popserver.messages import keyed
from popserver.model.errors import BadRequest
from popserver.model.message import id_from_bytes
from popserver.model.names import Resource
from popserver.model.topic import Topic, offset_of

EXAMINED_MAX = 10_000
STEP_ROWS = 500


class Wish(NamedTuple):
    """What to look for; None: anything. Stored at `since_ms` or later, and before `until_ms`. At most `limit` are
    returned."""

    key: str | None
    tag: str | None
    where: str | None
    since_ms: int
    until_ms: int | None
    limit: int


class FoundMessages(NamedTuple):
    """`matched` of `examined` messages match; if not `complete`, others were not examined. `newest` are some of them,
    with their topics."""

    examined: int
    matched: int
    complete: bool
    newest: list[tuple[Resource, Match]]


class _KeyedRow(NamedTuple):
    message_key: int
    message_id: bytes
    stored_at_ms: int
    tag: str | None
    keys: str
    properties: str | None
    namespace: str
    name: str
    number: int


def filter_of(wish: Wish) -> SqlFilter | None:
    """The SQL filter for tag and condition; None if there is neither. Raises `BadRequest`."""
    conditions = []
    if wish.where is not None:
        filters_sql.parse(wish.where)  # alone, so that an error names the place in what the caller wrote
        conditions.append(f"({wish.where}\n)")  # a comment may be at its end
    if wish.tag is not None:
        conditions.append("TAGS = '{}'".format(wish.tag.replace("'", "''")))
    return filters_sql.parse(" AND ".join(conditions)) if conditions else None


async def find(reader: Reader, topic: Topic | None, wish: Wish) -> FoundMessages:
    """The newest messages that match, in one topic or (None, with a key) in all. Raises `BadRequest`."""
    wanted = filter_of(wish)
    if wish.key is not None:
        return await _by_key(reader, topic, wish, wanted)
    if topic is None:
        raise BadRequest("without a key one topic is searched; name the topic, or give a key")
    everything = filters_sql.parse("TRUE")
    trial = await filter_trial.run_trial(
        reader, topic, wanted or everything, wish.since_ms, wish.limit, until_ms=wish.until_ms
    )
    newest = [(topic.name, each) for each in trial.newest]
    return FoundMessages(trial.examined, trial.matched, trial.complete, newest)


async def _by_key(reader: Reader, topic: Topic | None, wish: Wish, wanted: SqlFilter | None) -> FoundMessages:
    assert wish.key is not None, "this search has a key"
    blocks = await reader.read(partial(_blocks, topic=topic))
    keys: list[int] = []
    while blocks and len(keys) < EXAMINED_MAX:
        room = EXAMINED_MAX - len(keys)
        keys += await reader.read(partial(keyed.with_key, key=wish.key, blocks=blocks[: keyed.BLOCKS_MAX], limit=room))
        blocks = blocks[keyed.BLOCKS_MAX :]
    found: list[tuple[Resource, Match]] = []
    for start in range(0, len(keys), STEP_ROWS):
        names = {"keys": encode_rows([(key,) for key in keys[start : start + STEP_ROWS]])}
        rows = await reader.read(partial(_KEYED.rows, names=names))
        found += [match for row in rows if (match := _match(row, wish, wanted)) is not None]
    found.sort(key=lambda each: (each[1].stored_at_ms, each[1].offset), reverse=True)
    return FoundMessages(len(keys), len(found), len(keys) < EXAMINED_MAX, found[: wish.limit])


def _blocks(conn: Connection, topic: Topic | None) -> list[int]:
    if topic is not None:
        return keyed.blocks_of(queue_rows(conn, topic.topic_id))
    return keyed.blocks_of(chain.from_iterable(all_queue_rows(conn).values()))


def _match(row: _KeyedRow, wish: Wish, wanted: SqlFilter | None) -> tuple[Resource, Match] | None:
    keys = json.loads(row.keys)
    if wish.key not in keys or row.stored_at_ms < wish.since_ms:
        return None
    if wish.until_ms is not None and row.stored_at_ms >= wish.until_ms:
        return None
    properties = json.loads(row.properties) if row.properties else {}
    if wanted is not None and not wanted.verdict(row.tag, properties):
        return None
    message_id, offset = id_from_bytes(bytes(row.message_id)), offset_of(row.message_key)
    match = Match(message_id, row.number, offset, row.stored_at_ms, row.tag, tuple(keys), properties)
    return Resource(row.namespace, row.name), match


_KEYS = rows_parameter("keys", "message_key")
_KEYED = RowStatement(
    _KeyedRow,
    select(
        message.c.message_key,
        message.c.message_id,
        message.c.stored_at_ms,
        message.c.tag,
        message.c["keys"],
        message.c.properties,
        topic_table.c.namespace,
        topic_table.c.name,
        queue.c.number,
    )
    .select_from(message)
    .join(queue, queue.c.queue_id == message.c.message_key.op(">>")(KEY_SHIFT))
    .join(topic_table, and_(topic_table.c.topic_id == queue.c.topic_id, topic_table.c.deleted_at_ms.is_(None)))
    .where(message.c.message_key.in_(select(_KEYS.c.message_key))),
)
