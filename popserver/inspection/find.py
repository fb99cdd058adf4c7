"""Find stored messages by key, tag, SQL filter and time, newest first.

With a key the index of keys is read; without one, the newest messages of one topic are examined (`filter_trial`). Both
limit the messages that one request examines, and its work. The answer then says where the next request goes on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
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
from popserver.inspection.filter_trial import UNITS_MAX, Match
from popserver.messages import keyed
from popserver.messages.keyed import IndexPlace
from popserver.messages.ranges import Work
from popserver.model.errors import BadRequest
from popserver.model.message import id_from_bytes
from popserver.model.names import Resource
from popserver.model.topic import Topic, offset_of

EXAMINED_MAX = 10_000
STEP_ROWS = 500
# Decoding so many characters of a message's keys and properties costs a unit of work, about 0.1 µs.
_CHARACTERS_PER_UNIT = 16
# A page is a place in the index of keys, or the offsets of queues.
_PAGE_OF_KEY = re.compile(r"([0-9]{1,16})\.([0-9]{1,16})\.([0-9]{1,4})")
_PAGE_OF_TOPIC = re.compile(r"[0-9]{1,4}:[0-9]{1,13}(,[0-9]{1,4}:[0-9]{1,13}){0,1023}")


class Wish(NamedTuple):
    """What to look for; None: anything. Stored at `since_ms` or later, and before `until_ms`. At most `limit` are
    returned. `page`: where an earlier search ended; empty: begin."""

    key: str | None
    tag: str | None
    where: str | None
    since_ms: int
    until_ms: int | None
    limit: int
    page: str = ""


class FoundMessages(NamedTuple):
    """`matched` of `examined` messages match. `newest` are some of them, with their topics. `next_page`: the page of
    those that were not examined; empty if there are none."""

    examined: int
    matched: int
    newest: list[tuple[Resource, Match]]
    next_page: str


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


def filter_of(wish: Wish) -> SqlFilter:
    """The SQL filter for tag and condition. Raises `BadRequest`."""
    conditions = []
    if wish.where is not None:
        filters_sql.parse(wish.where)  # alone, so that an error names the place in what the caller wrote
        conditions.append(f"({wish.where}\n)")  # a comment may be at its end
    if wish.tag is not None:
        conditions.append("TAGS = '{}'".format(wish.tag.replace("'", "''")))
    return filters_sql.parse(" AND ".join(conditions) or "TRUE")


async def find(reader: Reader, topic: Topic | None, wish: Wish) -> FoundMessages:
    """The newest messages that match, in one topic or (None, with a key) in all. Raises `BadRequest`."""
    wanted = filter_of(wish)
    if wish.key is not None:
        return await _by_key(reader, topic, wish, wanted)
    if topic is None:
        raise BadRequest("without a key one topic is searched; name the topic, or give a key")
    before = _offsets(wish.page) if wish.page else None
    trial = await filter_trial.run_trial(
        reader, topic, wanted, wish.since_ms, wish.limit, until_ms=wish.until_ms, before=before
    )
    newest = [(topic.name, each) for each in trial.newest]
    next_page = ",".join(f"{number}:{offset}" for number, offset in trial.left.items())
    return FoundMessages(trial.examined, trial.matched, newest, next_page)


async def _by_key(reader: Reader, topic: Topic | None, wish: Wish, wanted: SqlFilter) -> FoundMessages:
    start = _place(wish.page) if wish.page else None
    places = await _places(reader, topic, wish.key or "", start)
    newest: list[tuple[Resource, Match]] = []
    examined = matched = 0
    units, work = UNITS_MAX, Work()
    while examined < len(places) and units > 0:
        work.start_again()
        step = places[examined : examined + min(STEP_ROWS, work.messages(wanted))]
        names = {"keys": encode_rows([(each.message_key,) for each in step])}
        judge = partial(_judge, step, wish=wish, wanted=wanted, work=work)
        done, found = await reader.read_then(partial(_KEYED.rows, names=names), judge)
        units -= work.used
        examined += done
        matched += len(found)
        newest = sorted([*newest, *found], key=_age, reverse=True)[: wish.limit]
    has_more = examined < len(places) or len(places) == EXAMINED_MAX
    return FoundMessages(examined, matched, newest, ".".join(map(str, places[examined - 1])) if has_more else "")


async def _places(reader: Reader, topic: Topic | None, key: str, start: IndexPlace | None) -> list[IndexPlace]:
    """The places of the first `EXAMINED_MAX` messages with the key."""
    blocks = await reader.read(partial(_blocks, topic=topic, start=start))
    places: list[IndexPlace] = []
    while blocks and len(places) < EXAMINED_MAX:
        room = EXAMINED_MAX - len(places)
        places += await reader.read(partial(keyed.with_key, key=key, blocks=blocks[: keyed.BLOCKS_MAX], limit=room))
        blocks = blocks[keyed.BLOCKS_MAX :]
    return places


def _blocks(conn: Connection, topic: Topic | None, start: IndexPlace | None) -> list[IndexPlace]:
    if topic is not None:
        return keyed.blocks_of(queue_rows(conn, topic.topic_id), start)
    return keyed.blocks_of(chain.from_iterable(all_queue_rows(conn).values()), start)


def _judge(
    places: Sequence[IndexPlace], rows: Sequence[_KeyedRow], wish: Wish, wanted: SqlFilter, work: Work
) -> tuple[int, list[tuple[Resource, Match]]]:
    """How many messages were examined, and those of them that match. It ends early if the allowed work is done."""
    found = []
    stored = {row.message_key: row for row in rows}
    for examined, place in enumerate(places, start=1):
        row = stored.get(place.message_key)  # None: of a deleted topic, or removed a moment ago
        if row is not None and _is_in_time(row.stored_at_ms, wish):
            keys, properties = json.loads(row.keys), json.loads(row.properties) if row.properties else {}
            if wish.key in keys and wanted.verdict(row.tag, properties):
                found.append(_match(row, keys, properties))
            characters = len(row.keys) + len(row.properties or "")
            work.spend(wanted.cost(row.tag, properties) + characters // _CHARACTERS_PER_UNIT)
            if work.is_done:
                return examined, found
    return len(places), found


def _is_in_time(stored_at_ms: int, wish: Wish) -> bool:
    return wish.since_ms <= stored_at_ms and (wish.until_ms is None or stored_at_ms < wish.until_ms)


def _match(row: _KeyedRow, keys: Sequence[str], properties: dict[str, str]) -> tuple[Resource, Match]:
    message_id, offset = id_from_bytes(bytes(row.message_id)), offset_of(row.message_key)
    match = Match(message_id, row.number, offset, row.stored_at_ms, row.tag, tuple(keys), properties)
    return Resource(row.namespace, row.name), match


def _age(found: tuple[Resource, Match]) -> tuple[int, int]:
    return found[1].stored_at_ms, found[1].offset


def _place(page: str) -> IndexPlace:
    found = _PAGE_OF_KEY.fullmatch(page)
    if found is None:
        raise _no_page(page, "with a key")
    return IndexPlace(*map(int, found.groups()))


def _offsets(page: str) -> Mapping[int, int]:
    """The offset of each queue, by number."""
    if not _PAGE_OF_TOPIC.fullmatch(page):
        raise _no_page(page, "without a key")
    pairs = (each.split(":") for each in page.split(","))
    return {int(number): int(offset) for number, offset in pairs}


def _no_page(page: str, kind: str) -> BadRequest:
    return BadRequest(
        f"'{page[:64]}' is not a page of a search {kind}; give the page that the answer before named, with the same"
        " key, or none to begin"
    )


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
