"""Pulls: read a queue from an offset on. A pull changes nothing and does not use the group's progress.

A read ends after a window of offsets, a batch of messages or its limit of bytes; `next_offset` is where it ended. A
queue may have holes where dead letters were removed; they are skipped like messages that the filter refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple

from sqlalchemy import Connection

from popserver.catalog import progress, queue_offsets
from popserver.catalog.lookup import topic_not_found
from popserver.catalog.queue_offsets import Ends
from popserver.filters import Filter, SqlFilter
from popserver.messages.by_key import MessageRow, by_keys, size_query, sizes, stored_messages
from popserver.messages.ranges import WINDOW_OFFSETS, WITH_TAG, FilterQuery, Work, judge, narrowed, of_tags, totals
from popserver.messages.read import within_a_page
from popserver.model.errors import PopError
from popserver.model.topic import MessageQueue, Topic, message_key
from popserver.pulling.rules import BATCH_BYTES_MAX, Pulled, PullStatus, correction


class QueueRead(NamedTuple):
    """A read of up to `batch_size` messages of one queue, from `offset` on.

    `unsure_of`: the group of a pull whose offset may belong to an earlier topic of that name. An offset beyond the end
    does if the group has no progress in this queue. None if the offset is known to belong to this topic.
    `max_bytes` limits the bytes of bodies; the first message may be larger.
    """

    topic: Topic
    queue: MessageQueue
    offset: int
    batch_size: int
    wanted: Filter
    unsure_of: int | None = None
    max_bytes: int = BATCH_BYTES_MAX


class _Reached(NamedTuple):
    """The messages of a pull, and where to continue."""

    keys: Sequence[int]
    offset: int


def read_queues(conn: Connection, pulls: Sequence[QueueRead]) -> list[Pulled | PopError]:
    """What each pull finds, all at the same moment; `TopicNotFound` for a pull whose topic was deleted.

    Several pulls cost little more than one: queue ends, sizes and messages need one statement each.
    """
    by_queue = queue_offsets.ends(conn, {each.queue.queue_id for each in pulls})
    ends = [by_queue.get(each.queue.queue_id) for each in pulls]
    inside = [own is not None and _correction(pull, own) is None for pull, own in zip(pulls, ends, strict=True)]
    read = iter(_read_on(conn, [(pull, by_queue[pull.queue.queue_id]) for pull in compress(pulls, inside)]))
    reached = [next(read) if is_inside else None for is_inside in inside]
    keys = {key for each in reached if each for key in each.keys}
    rows = by_keys(conn, sorted(keys))
    return [_pulled(conn, *each, rows) for each in zip(pulls, ends, reached, strict=True)]


def ends_of(conn: Connection, topic: Topic, queue: MessageQueue) -> Ends:
    """The offsets where one queue begins and ends. Raises `TopicNotFound`."""
    ends = queue_offsets.ends(conn, [queue.queue_id])
    if not ends:
        raise topic_not_found(topic.name)
    return ends[queue.queue_id]


def _correction(pull: QueueRead, ends: Ends, *, is_of_this_topic: bool = True) -> int | None:
    return correction(pull.offset, ends.min_offset, ends.end_offset, is_of_this_topic=is_of_this_topic)


def _pulled(
    conn: Connection, pull: QueueRead, ends: Ends | None, reached: _Reached | None, rows: Mapping[int, MessageRow]
) -> Pulled | PopError:
    if ends is None:
        return topic_not_found(pull.topic.name)
    if reached is None:
        group_id, queue_id = pull.unsure_of, pull.queue.queue_id
        is_of_this_topic = group_id is None or progress.next_offset(conn, group_id, queue_id) is not None
        corrected = _correction(pull, ends, is_of_this_topic=is_of_this_topic)
        assert corrected is not None, "a pull that was not read has an illegal offset"
        status, found, next_offset = PullStatus.OFFSET_ILLEGAL, [], corrected
    else:
        found = stored_messages(conn, (rows[key] for key in reached.keys), pull.topic)
        status, next_offset = _status(pull, found, reached.offset), reached.offset
    return Pulled(status, found, next_offset, ends.min_offset, ends.end_offset, pull.topic.generation)


def _status(pull: QueueRead, found: Sequence[object], next_offset: int) -> PullStatus:
    if found:
        return PullStatus.FOUND
    return PullStatus.NO_MATCHED_MSG if next_offset > pull.offset else PullStatus.NO_NEW_MSG


def _read_on(conn: Connection, pulls: Sequence[tuple[QueueRead, Ends]]) -> list[_Reached]:
    """For each pull, the keys of messages that fit into its answer, and the offset where to continue."""
    spans = [_span(pull, ends) for pull, ends in pulls]
    limits = {number: pull.max_bytes for number, (pull, _) in enumerate(pulls) if pull.wanted.wants_all}
    whole = _whole(conn, spans, limits)
    answers: list[_Reached] = []
    for number, ((pull, ends), span) in enumerate(zip(pulls, spans, strict=True)):
        if number in whole:
            from_key, end_key = _bounds(span)
            keys: Sequence[int] = range(from_key, end_key)
        else:
            keys, end_key = _chosen(conn, pull, span)
        answers.append(_Reached(keys, end_key - message_key(ends.queue_id, 0)))
    return answers


def _span(pull: QueueRead, ends: Ends) -> dict[str, int]:
    # Without a filter no window is needed: the read ends after its batch, and holes cost nothing.
    to_offset = ends.end_offset if pull.wanted.wants_all else min(ends.end_offset, pull.offset + WINDOW_OFFSETS)
    from_key, to_key = message_key(ends.queue_id, pull.offset), message_key(ends.queue_id, to_offset)
    return {"from_key": from_key, "to_key": to_key, "limit": pull.batch_size}


def _whole(conn: Connection, spans: Sequence[Mapping[str, int]], limits: Mapping[int, int]) -> set[int]:
    """Indexes of the spans whose first messages, up to the batch size, have no holes and fit into one answer.

    `limits` are the bytes of each answer, by index, without the spans that are read message by message anyway.
    """
    bounds = [(number, *_bounds(spans[number])) for number in limits]
    counts = {number: to_key - from_key for number, from_key, to_key in bounds}
    full = [each for each in totals(conn, bounds) if each.messages == counts[each.number]]
    return {each.number for each in full if each.size <= limits[each.number]}


def _bounds(span: Mapping[str, int]) -> tuple[int, int]:
    return span["from_key"], min(span["to_key"], span["from_key"] + span["limit"])


def _chosen(conn: Connection, pull: QueueRead, span: Mapping[str, int]) -> tuple[Sequence[int], int]:
    found, end_key = _wanted(conn, pull.wanted, span)
    keys = within_a_page(found, pull.max_bytes)
    return keys, end_key if len(keys) == len(found) else keys[-1] + 1


def _wanted(conn: Connection, wanted: Filter, names: Mapping[str, Any]) -> tuple[Sequence[tuple[int, int]], int]:
    """Keys and sizes of messages, and the key at which to go on."""
    if isinstance(wanted, SqlFilter):
        keys, reached = judge(conn, _JUDGED, wanted, names, Work())
        known = sizes(conn, keys)
        return [(key, known[key]) for key in keys if key in known], reached
    found = _EVERY.rows(conn, names) if wanted.wants_all else _TAGGED.rows(conn, {**names, **of_tags(wanted)})
    is_full = len(found) == names["limit"]
    return found, found[-1].message_key + 1 if is_full else names["to_key"]


_EVERY = size_query(narrowed())
_TAGGED = size_query(narrowed(*WITH_TAG))
_JUDGED = FilterQuery(narrowed())
