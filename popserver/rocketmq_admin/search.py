"""QueryMessage: stored messages of a topic in a time range, by id, by key, by tags, or all of them; page by page.

`administration.find` finds the messages of a key: each page has its newest first. Messages that are scanned are ordered
by queue and offset, because that order never changes, so a page can begin where the page before has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection

from popserver.administration import find
from popserver.administration.find import MessageSearch
from popserver.engine.reader import Reader
from popserver.filters import TagFilter
from popserver.messages import by_key, parts, read, seek
from popserver.messages.by_key import HeadRow
from popserver.model.errors import BadRequest
from popserver.model.message import StoredMessage
from popserver.model.topic import (
    OFFSET_BITS,
    MessageQueue,
    Topic,
    message_key,
    offset_of,
    queue_numbered,
    queue_of_group,
)
from popserver.transport.limits import MIB

PAGE_DEFAULT = 32
PAGE_MAX = 1_000
# How many messages one request examines. The answer then has a scroll id, even if it has no message.
EXAMINED_MAX = 10_000
STEP_MESSAGES = 1_000
# By default a gRPC client refuses an answer of more than 4 MiB. The rest is for all but the messages.
PAGE_BYTES_MAX = 4 * MIB - 16 * 1024
_FRAME_BYTES = 8  # around each message in an answer
_OFFSET_MAX = (1 << OFFSET_BITS) - 1


class Query(NamedTuple):
    """What to find: by `key`, or all of `lite_topic`, or (both None) by tags.

    Stored from `begin_ms` to `end_ms`, both included.
    `skip` messages that match are left out, then up to `limit` are returned.
    """

    key: str | None
    tags: TagFilter
    begin_ms: int
    end_ms: int
    queue_number: int | None
    skip: int
    limit: int
    after: str  # the scroll id of the page before; empty for the first page
    lite_topic: str | None = None


class FoundPage(NamedTuple):
    """Messages, and the scroll id of the next page; empty after the last one."""

    messages: list[StoredMessage]
    scroll_id: str


class _Position(NamedTuple):
    """Where a scan continues: an offset of a queue, by its number."""

    number: int
    offset: int


# How many bytes of an answer a message needs.
SizeOf = Callable[[StoredMessage], int]


async def search(reader: Reader, topic: Topic, query: Query, size_of: SizeOf) -> FoundPage:
    """One page, of at most `PAGE_BYTES_MAX`, or one message. Raises `BadRequest` for a queue that the topic does not
    have, and for a foreign scroll id."""
    if query.queue_number is not None:
        queue_numbered(topic, query.queue_number)
    if query.lite_topic is not None and not topic.is_lite:
        raise BadRequest(f"topic '{topic.name}' has no lite topics; search it by time, by key or by tags")
    return await (_scan if query.key is None else _by_key)(reader, topic, query, size_of)


async def _by_key(reader: Reader, topic: Topic, query: Query, size_of: SizeOf) -> FoundPage:
    page = _page_of_key(query.after) if query.after else ""
    asked = MessageSearch(query.key, None, None, query.begin_ms, query.end_ms + 1, query.skip, page, query.queue_number)
    if query.skip:
        skipped = await find.find(reader, topic, asked)
        if not skipped.next_page:
            return FoundPage([], "")
        if len(skipped.matches) < query.skip:
            raise _not_reached(query, len(skipped.matches))
        asked = asked._replace(page=skipped.next_page)
    limit = query.limit
    while True:
        found = await find.find(reader, topic, asked._replace(limit=limit))
        keys = [
            message_key(queue_numbered(topic, each.queue_number).queue_id, each.offset) for _, each in found.matches
        ]
        messages, left_key = await reader.read(partial(_fitting, topic=topic, keys=keys, size_of=size_of))
        if left_key is None:
            return FoundPage(messages, f"key:{found.next_page}" if found.next_page else "")
        # The search meets messages in another order, so its first ones may be larger than these; soon few enough fit.
        limit = min(len(messages), limit // 2)


async def _scan(reader: Reader, topic: Topic, query: Query, size_of: SizeOf) -> FoundPage:
    position = _position(query.after) if query.after else _Position(0, 0)
    found = _Scanned(query)
    # A lite topic is in one queue.
    among = topic.queues if query.lite_topic is None else [queue_of_group(topic, query.lite_topic)]
    queues = [each for each in among if query.queue_number in (None, each.number)]
    for each in sorted(queues, key=lambda queue: queue.number):
        if each.number >= position.number:
            begin = partial(_begin, topic=topic, queue=each, query=query, position=position)
            end = await _scan_queue(reader, each, await reader.read(begin), found)
            if end is not None:
                if found.to_skip:
                    raise _not_reached(query, query.skip - found.to_skip)
                return await _page(reader, topic, found.keys, f"at:{each.number}:{end}", size_of)
    return await _page(reader, topic, found.keys, "", size_of)


async def _scan_queue(reader: Reader, queue: MessageQueue, at: int, found: _Scanned) -> int | None:
    """Examine a queue from this offset on, in steps, so that other reads run in between.

    Returns the offset where the next page begins; None if the queue has no more messages of the time range.
    """
    while found.examined < EXAMINED_MAX:
        rows = await reader.read(partial(_step, queue=queue, from_offset=at, lite_topic=found.query.lite_topic))
        for row in rows:
            if row.stored_at_ms > found.query.end_ms:
                return None
            if not found.take(row):
                return offset_of(row.message_key)
        if len(rows) < STEP_MESSAGES:
            return None
        at = offset_of(rows[-1].message_key) + 1
    return at


class _Scanned:
    """The messages of a page: their keys; how many were examined for it, and how many that match are still to be
    skipped before it begins."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.keys: list[int] = []
        self.examined = 0
        self.to_skip = query.skip

    def take(self, row: HeadRow) -> bool:
        """Examine a message. False if it belongs to the next page, because this one is full."""
        wanted = self.query.tags
        if wanted.wants_all or row.tag in wanted.tags:
            if self.to_skip:
                self.to_skip -= 1
            elif len(self.keys) == self.query.limit:
                return False
            else:
                self.keys.append(row.message_key)
        self.examined += 1
        return True


async def _page(reader: Reader, topic: Topic, keys: list[int], scroll_id: str, size_of: SizeOf) -> FoundPage:
    """The messages, as many as fit into an answer; the next page begins with the first that does not."""
    messages, left_key = await reader.read(partial(_fitting, topic=topic, keys=keys, size_of=size_of))
    if left_key is None:
        return FoundPage(messages, scroll_id)
    numbers = {each.queue_id: each.number for each in topic.queues}
    return FoundPage(messages, f"at:{numbers[left_key >> OFFSET_BITS]}:{offset_of(left_key)}")


def _not_reached(query: Query, skipped: int) -> BadRequest:
    """A scroll id cannot say how many messages are still to be skipped, and the client counts pages."""
    return BadRequest(
        f"the page begins after {query.skip} messages, and one request found {skipped} of them before its work was"
        " done; begin with the first page, and go on by the scroll id of each answer"
    )


def _fitting(
    conn: Connection, topic: Topic, keys: list[int], size_of: SizeOf
) -> tuple[list[StoredMessage], int | None]:
    """The first of these messages, as many as fit into an answer, and the key of the first that does not."""
    # First by the sizes of bodies alone, so that few are loaded in vain.
    sizes = by_key.sizes(conn, keys)
    small = read.within_a_page(((key, sizes.get(key, 0)) for key in keys), PAGE_BYTES_MAX)
    loaded = {each.message_key: each for each in read.load(conn, topic, small)}
    whole = ((key, size_of(each) + _FRAME_BYTES) for key, each in loaded.items())
    shown = read.within_a_page(whole, PAGE_BYTES_MAX)
    left = [*list(loaded)[len(shown) :], *keys[len(small) :]]
    return [loaded[key] for key in shown], left[0] if left else None


def _begin(conn: Connection, topic: Topic, queue: MessageQueue, query: Query, position: _Position) -> int:
    """Where the scan of a queue begins: at the end of the page before, or at the first message of the time range."""
    offset = position.offset if queue.number == position.number else 0
    return max(offset, seek.offset_at(conn, topic, queue, query.begin_ms))


def _step(conn: Connection, queue: MessageQueue, from_offset: int, lite_topic: str | None) -> list[HeadRow]:
    first, end = message_key(queue.queue_id, from_offset), message_key(queue.queue_id + 1, 0)
    return parts.page(conn, first, end, STEP_MESSAGES, message_group=lite_topic)


def _page_of_key(scroll_id: str) -> str:
    """The page of the search by a key. Raises `BadRequest` if this is the scroll id of another kind of request."""
    kind, _, page = scroll_id.partition(":")
    if kind != "key" or not page:
        raise _foreign(scroll_id)
    return page


def _position(scroll_id: str) -> _Position:
    """Raises `BadRequest` if no answer to a scan can have this scroll id."""
    kind, *written = scroll_id.split(":")
    if kind != "at" or len(written) != 2 or not all(each.isdecimal() and len(each) < 14 for each in written):
        raise _foreign(scroll_id)
    position = _Position(*map(int, written))
    if max(position) > _OFFSET_MAX:
        raise _foreign(scroll_id)
    return position


def _foreign(scroll_id: str) -> BadRequest:
    return BadRequest(f"scroll id '{scroll_id[:64]}' belongs to another kind of request; begin without one")
