"""Find stored messages by key, tag, SQL filter and time, newest first.

With a key the index of keys is read; without one, the newest messages of one topic are examined (`filter_trial`). Both
end when enough are found, and limit the messages that one request examines, and its work. The answer then has the page
where the next request goes on, so that all pages together have every match once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection

from popserver.administration import filter_trial
from popserver.administration.filter_trial import UNITS_MAX, Match, QueueShare
from popserver.catalog import topics
from popserver.catalog.queues import QueueRow, queue_rows
from popserver.engine.reader import Reader
from popserver.filters import SqlFilter
from popserver.filters import sql as filters_sql
from popserver.messages import by_key
from popserver.messages.by_key import HeadRow
from popserver.messages.keyed import IndexPosition, KeySearch, spans_of, spans_of_all
from popserver.messages.ranges import Work
from popserver.messages.seek import offset_at
from popserver.model.errors import BadRequest
from popserver.model.message import check_lite_topic
from popserver.model.names import Resource
from popserver.model.topic import MessageQueue, MessageType, Topic, message_key, queue_of, queue_of_group

EXAMINED_MAX = 10_000
STEP_ROWS = 500
# Decoding so many characters of a message's keys and properties costs a unit of work, about 0.1 µs.
_CHARACTERS_PER_UNIT = 16
# A page is a position in the index of keys, or in a topic.
_PAGE_OF_KEY = re.compile(r"([0-9]{1,16})\.([0-9]{1,16})\.([0-9]{1,4})")
_PAGE_OF_TOPIC = re.compile(r"([0-9]{1,15}):([0-9]{1,4}):([0-9]{1,13})")


class MessageSearch(NamedTuple):
    """What to find; None: anything. Stored at `since_ms` or later, and before `until_ms`. At most `limit` are
    returned. `page`: where an earlier search ended; empty: begin. `queue_number`: in this queue of the topic alone.
    `lite_topic`: of this lite topic, also from before it expired."""

    key: str | None
    tag: str | None
    where: str | None
    since_ms: int
    until_ms: int | None
    limit: int
    page: str = ""
    queue_number: int | None = None
    lite_topic: str | None = None


class FoundMessages(NamedTuple):
    """What matches of `examined` messages, with their topics, the newest first. `next_page`: the page of the others;
    empty if there are none."""

    examined: int
    matches: list[tuple[Resource, Match]]
    next_page: str


class _TopicPosition(NamedTuple):
    """A position in a topic: all messages from the newest to this one. The queue's number and the offset order messages
    that were stored at one time."""

    stored_at_ms: int
    queue_number: int
    offset: int


class _Keyed(NamedTuple):
    """A message of an existing topic, without its body."""

    head: HeadRow
    topic: Resource
    queue_number: int


def filter_of(asked: MessageSearch) -> SqlFilter:
    """The SQL filter for tag and condition. Raises `BadRequest`."""
    conditions = []
    if asked.where is not None:
        filters_sql.parse(asked.where)  # alone, so that an error names the position in what the caller wrote
        conditions.append(f"({asked.where}\n)")  # a comment may be at its end
    if asked.tag is not None:
        conditions.append("TAGS = '{}'".format(asked.tag.replace("'", "''")))
    return filters_sql.parse(" AND ".join(conditions) or "TRUE")


async def find(reader: Reader, topic: Topic | None, asked: MessageSearch) -> FoundMessages:
    """The newest messages that match, in one topic or (None, with a key) in all. Raises `BadRequest`."""
    wanted = filter_of(asked)
    if asked.lite_topic is not None:
        check_lite_topic(asked.lite_topic)
        if topic is not None and not topic.is_lite:
            raise BadRequest(
                f"topic '{topic.name}' takes {' and '.join(topic.accepts)} messages and has no lite topics"
            )
    if asked.key is not None:
        return await _by_key(reader, topic, asked.key, asked, wanted)
    if topic is None:
        raise BadRequest("without a key one topic is searched; name the topic, or give a key")
    return await _in_topic(reader, topic, asked, wanted)


async def _in_topic(reader: Reader, topic: Topic, asked: MessageSearch, wanted: SqlFilter) -> FoundMessages:
    """Search each queue from its newest message back to where enough are found in the queues before it.

    Where the share of a queue is used up, the page ends for all queues, so the next one begins at one position.
    """
    start = _topic_position(asked)
    # The longest last: what the others do not need of their shares is left for it.
    queues = sorted(
        (each for each in await reader.read(partial(_queues, topic=topic, asked=asked)) if _length(each)), key=_length
    )
    examined, units, has_more = 0, UNITS_MAX, False
    end = _TopicPosition(0, 0, 0)
    found: list[Match] = []
    for left, row in zip(range(len(queues), 0, -1), queues, strict=True):
        queue = MessageQueue(row.queue_id, row.number)
        before_key = await reader.read(partial(_before, topic=topic, queue=queue, start=start))
        share = QueueShare(max(1, (filter_trial.EXAMINED_MAX - examined) // left), units // left, asked.limit)
        trial = await filter_trial.try_on_queue(
            reader, queue, wanted, before_key, share, asked.limit, asked.since_ms, end.stored_at_ms, asked.lite_topic
        )
        examined += trial.examined
        units -= trial.units
        found = sorted([*found, *trial.newest], key=_position_of, reverse=True)
        if trial.ended_at is not None:
            stored_at_ms, offset = trial.ended_at
            end = max(end, _TopicPosition(stored_at_ms, row.number, offset))
        if len(found) >= asked.limit:
            end = max(end, _position_of(found[asked.limit - 1]))
        shown = [each for each in found if _position_of(each) >= end]
        has_more = has_more or trial.has_more or len(shown) < len(found)
        found = shown
    page = ":".join(map(str, end)) if has_more else ""
    return FoundMessages(examined, [(topic.name, each) for each in found], page)


def _before(conn: Connection, topic: Topic, queue: MessageQueue, start: _TopicPosition | None) -> int:
    """The message key in a queue where a search that goes on at `start` begins."""
    if start is None:
        return filter_trial.end_of(queue)
    if queue.number == start.queue_number:
        return min(filter_trial.end_of(queue), message_key(queue.queue_id, start.offset))
    at_ms = start.stored_at_ms + (queue.number < start.queue_number)
    return message_key(queue.queue_id, offset_at(conn, topic, queue, at_ms))


def _queues(conn: Connection, topic: Topic, asked: MessageSearch) -> list[QueueRow]:
    """The queues of the topic that are searched."""
    rows = queue_rows(conn, topic.topic_id)
    number = asked.queue_number
    if asked.lite_topic is not None and topic.is_lite:
        number = queue_of_group(topic, asked.lite_topic).number
    return [each for each in rows if number in (None, each.number)]


def _length(row: QueueRow) -> int:
    return row.next_offset - row.min_offset


def _position_of(found: Match) -> _TopicPosition:
    return _TopicPosition(found.stored_at_ms, found.queue_number, found.offset)


async def _by_key(
    reader: Reader, topic: Topic | None, key: str, asked: MessageSearch, wanted: SqlFilter
) -> FoundMessages:
    start = _index_position(asked.page) if asked.page else None
    search = await reader.read(partial(_search, topic=topic, key=key, asked=asked, start=start))
    found: list[tuple[Resource, Match]] = []
    examined, units, work = 0, UNITS_MAX, Work()
    position = search.position
    while position is not None and units > search.units and examined < EXAMINED_MAX and len(found) < asked.limit:
        positions = await reader.read(partial(search.step, limit=EXAMINED_MAX - examined))
        position, done = search.position, 0
        # At least one message is examined, so that the next page begins elsewhere.
        while done < len(positions) and (done == 0 or units > search.units) and len(found) < asked.limit:
            work.start_again()
            step = positions[done : done + min(STEP_ROWS, work.messages(wanted))]
            judge = partial(_judge, step, asked=asked, wanted=wanted, work=work, limit=asked.limit - len(found))
            judged, matches = await reader.read_then(partial(_keyed, positions=step), judge)
            units -= work.used
            done += judged
            found += matches
        examined += done
        if done < len(positions):
            position = positions[done - 1]
            break
    page = "" if position is None else ".".join(map(str, position))
    newest_first = sorted(found, key=lambda each: (each[1].stored_at_ms, each[1].offset), reverse=True)
    return FoundMessages(examined, newest_first, page)


def _search(
    conn: Connection, topic: Topic | None, key: str, asked: MessageSearch, start: IndexPosition | None
) -> KeySearch:
    if topic is not None:
        return KeySearch(key, spans_of(_queues(conn, topic, asked)), start)
    return KeySearch(key, spans_of_all(conn), start)


def _keyed(conn: Connection, positions: Sequence[IndexPosition]) -> dict[int, _Keyed]:
    """The messages at these positions, by key, without those that are gone."""
    heads = by_key.heads(conn, [each.message_key for each in positions])
    known = topics.topics_by_id(conn, {head.topic_id for head in heads.values()})
    queues = {each.queue_id: (topic.name, each.number) for topic in known.values() for each in topic.queues}
    return {key: _Keyed(head, *queues[queue_of(key)]) for key, head in heads.items() if queue_of(key) in queues}


def _judge(
    positions: Sequence[IndexPosition],
    stored: Mapping[int, _Keyed],
    asked: MessageSearch,
    wanted: SqlFilter,
    work: Work,
    limit: int,
) -> tuple[int, list[tuple[Resource, Match]]]:
    """How many messages were examined, and those of them that match.

    It ends early if the allowed work is done, and after `limit` matches.
    """
    found = []
    for examined, position in enumerate(positions, start=1):
        keyed = stored.get(position.message_key)  # None: of a deleted topic, or removed a moment ago
        if keyed is not None and _is_in_time(keyed.head.stored_at_ms, asked):
            head = keyed.head
            keys, properties = json.loads(head.keys or "[]"), json.loads(head.properties or "{}")
            lite_topic = head.message_group if head.message_type == MessageType.LITE else None
            is_named = asked.lite_topic in (None, lite_topic)
            if is_named and asked.key in keys and wanted.verdict(head.tag, properties):
                match = filter_trial.match_of(head, keyed.queue_number, keys, properties)
                found.append((keyed.topic, match))
            characters = len(head.keys or "") + len(head.properties or "")
            work.spend(wanted.cost(head.tag, properties) + characters // _CHARACTERS_PER_UNIT)
            if work.is_done or len(found) == limit:
                return examined, found
    return len(positions), found


def _is_in_time(stored_at_ms: int, asked: MessageSearch) -> bool:
    return asked.since_ms <= stored_at_ms and (asked.until_ms is None or stored_at_ms < asked.until_ms)


def _index_position(page: str) -> IndexPosition:
    found = _PAGE_OF_KEY.fullmatch(page)
    if found is None:
        raise _no_page(page, "with a key")
    return IndexPosition(*map(int, found.groups()))


def _topic_position(asked: MessageSearch) -> _TopicPosition | None:
    """Where the search begins; None: at the newest messages."""
    if not asked.page:
        return None if asked.until_ms is None else _TopicPosition(asked.until_ms, -1, 0)
    found = _PAGE_OF_TOPIC.fullmatch(asked.page)
    if found is None:
        raise _no_page(asked.page, "without a key")
    return _TopicPosition(*map(int, found.groups()))


def _no_page(page: str, kind: str) -> BadRequest:
    return BadRequest(
        f"'{page[:64]}' is not a page of a search {kind}; give the page that the answer before named, with the same"
        " key, or none to begin"
    )
