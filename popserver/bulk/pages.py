"""Pages of messages as columns: of a range of a queue, or of the messages that a receive holds.

A page has a limit of messages and of bytes of bodies and properties (`bulk.rules`). The database has the lengths
without reading the values. On SQLite, where a statement is cheap, a first statement reads the lengths. On Postgres one
statement reads lengths and page.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from sqlalchemy import Connection

from popserver.bulk.rules import CHUNK_BYTES_MAX, CHUNK_MESSAGES_MAX, HeldPage, QueuePage, QueueSlice
from popserver.catalog.queue_offsets import Ends
from popserver.catalog.queues import queues_by_id
from popserver.database.dialect import dialect_of
from popserver.database.rows import encode_column
from popserver.filters import SqlFilter
from popserver.messages.by_key import in_order
from popserver.messages.columns import ColumnQuery, Columns
from popserver.messages.ranges import WITH_TAG, FilterQuery, Work, inside, judge, narrowed, of_tags, within_room
from popserver.messages.redrives import origins_of
from popserver.model.message import REDRIVE_PLAN
from popserver.model.topic import Topic, message_key, queue_of
from popserver.pulling.read import ends_of
from popserver.pulling.rules import correction

# How many offsets a page with a filter reads at most.
_WINDOW_OFFSETS = 4 * CHUNK_MESSAGES_MAX


def page(conn: Connection, queue_slice: QueueSlice) -> QueuePage:
    """The first page of the range. Raises `TopicNotFound`."""
    ends = ends_of(conn, queue_slice.topic, queue_slice.queue)
    if correction(queue_slice.offset, ends.min_offset, ends.end_offset) is not None:
        return QueuePage(None, queue_slice.offset, ends.min_offset, ends.end_offset)
    # Only an index scan in the order of keys. With few matches Postgres would collect the messages of a page, and sort
    # them with their bodies.
    dialect_of(conn).walk_by_key(conn)
    names = _bounds(queue_slice, ends)
    in_one = dialect_of(conn).is_remote and not isinstance(queue_slice.wanted, SqlFilter)
    found, end_key = (_in_one if in_one else _sizes_first)(conn, queue_slice, names)
    return QueuePage(found, end_key - message_key(queue_slice.queue.queue_id, 0), ends.min_offset, ends.end_offset)


def first_of(
    conn: Connection, topic: Topic, keys: Sequence[int], sources: Sequence[str]
) -> tuple[HeldPage, Sequence[int]]:
    """The first page of messages that a group holds, in the order of these keys; and the remaining keys.

    Messages that were redriven to their group have other keys; the page shows their first keys.
    """
    named = keys[:CHUNK_MESSAGES_MAX]
    sizes = _BY_KEY.columns(conn, ["size"], {"keys": encode_column(named)})
    page_keys = _within_bytes(sizes)
    left = keys[len(named) if len(page_keys) == len(sizes.keys) else named.index(page_keys[-1]) + 1 :]
    found = _BY_KEY.columns(conn, sources, {"keys": encode_column(page_keys)})
    found = _at_origins(conn, topic, found)
    numbers = {each.queue_id: each.number for each in queues_by_id(conn, map(queue_of, found.shown_keys)).values()}
    return HeldPage(found, numbers), left


def _at_origins(conn: Connection, topic: Topic, found: Columns) -> Columns:
    own = {each.queue_id for each in topic.queues}
    elsewhere = [key for key in found.keys if queue_of(key) not in own]
    redriven = origins_of(conn, elsewhere) if elsewhere else {}
    shown_keys = [redriven[key].origin_key if key in redriven else key for key in found.keys]
    values = dict(found.values)
    if redriven and "properties" in values:
        values["properties"] = [
            {**properties, REDRIVE_PLAN: redriven[key].plan_id} if key in redriven else properties
            for key, properties in zip(found.keys, values["properties"], strict=True)
        ]
    return found._replace(values=values, shown_keys=shown_keys)


def _bounds(queue_slice: QueueSlice, ends: Ends) -> dict[str, int]:
    offsets = CHUNK_MESSAGES_MAX if queue_slice.wanted.wants_all else _WINDOW_OFFSETS
    to_offset = min(queue_slice.end_offset, ends.end_offset, queue_slice.offset + offsets)
    from_key = message_key(ends.queue_id, queue_slice.offset)
    return {
        "from_key": from_key,
        "to_key": max(from_key, message_key(ends.queue_id, to_offset)),
        "limit": CHUNK_MESSAGES_MAX,
    }


def _in_one(conn: Connection, queue_slice: QueueSlice, names: Mapping[str, int]) -> tuple[Columns, int]:
    """A page by one statement, and the key where the next page starts."""
    assert not isinstance(queue_slice.wanted, SqlFilter), "a SQL filter does not run in the database"
    query = _FIRST_OF_EVERY if queue_slice.wanted.wants_all else _FIRST_OF_TAGGED
    tags = {} if queue_slice.wanted.wants_all else of_tags(queue_slice.wanted)
    found = query.columns(conn, queue_slice.sources, {**names, **tags, "room": CHUNK_BYTES_MAX})
    return found, found.keys[-1] + 1 if found.keys else names["to_key"]


def _sizes_first(conn: Connection, queue_slice: QueueSlice, names: Mapping[str, int]) -> tuple[Columns, int]:
    """The same by two statements."""
    keys, end_key = _wanted(conn, queue_slice, names)
    if isinstance(keys, range):
        return _EVERY.columns(conn, queue_slice.sources, {"from_key": keys.start, "to_key": keys.stop}), end_key
    return _BY_KEY.columns(conn, queue_slice.sources, {"keys": encode_column(keys)}), end_key


def _wanted(conn: Connection, queue_slice: QueueSlice, names: Mapping[str, int]) -> tuple[Sequence[int], int]:
    """The keys of a page's messages (a range if there are no gaps), and the key where the next page starts."""
    wanted = queue_slice.wanted
    if wanted.wants_all:
        sizes = _EVERY.columns(conn, ["size"], names)
        keys = _within_bytes(sizes)
        end_key = names["to_key"] if len(keys) == len(sizes.keys) else keys[-1] + 1
        return range(names["from_key"], end_key), end_key
    if isinstance(wanted, SqlFilter):
        judged, reached = judge(conn, _JUDGED, wanted, names, Work())
        sizes = _BY_KEY.columns(conn, ["size"], {"keys": encode_column(judged)})
    else:
        sizes = _TAGGED.columns(conn, ["size"], {**names, **of_tags(wanted)})
        is_full = len(sizes.keys) == names["limit"]
        reached = sizes.keys[-1] + 1 if is_full else names["to_key"]
    keys = _within_bytes(sizes)
    return keys, reached if len(keys) == len(sizes.keys) else keys[-1] + 1


def _within_bytes(sizes: Columns) -> Sequence[int]:
    """The keys of the first messages that fit into one page; at least one."""
    count = bisect_right(list(accumulate(sizes.values["size"])), CHUNK_BYTES_MAX)
    return sizes.keys[: max(1, count)]


_FIRST_OF_EVERY = ColumnQuery(within_room())
_FIRST_OF_TAGGED = ColumnQuery(within_room(*WITH_TAG))
_EVERY = ColumnQuery(inside)
_TAGGED = ColumnQuery(narrowed(*WITH_TAG))
_JUDGED = FilterQuery(narrowed())
_BY_KEY = ColumnQuery(in_order)
