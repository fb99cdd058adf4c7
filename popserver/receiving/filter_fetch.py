"""A SQL filter judges the messages that a group may read next, before a receive reads them.

A filter takes time, and only one transaction writes at a time. So the filter runs here, outside the writer and without
a lock. The receive then grants those accepted messages that no other receive has got meanwhile. Messages never change,
so a result stays true whatever happens to the group's progress.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from sqlalchemy import Connection

from popserver.catalog.progress import QueueToScan
from popserver.database.rows import encode_rows
from popserver.filters import SqlFilter
from popserver.messages.ranges import FilterQuery, Unjudged, Work, in_bounds
from popserver.model.topic import message_key, queue_of
from popserver.receiving import message_groups, receive, scan
from popserver.receiving.batch import Judged, KeyRange, Receive


class FetchedMessages(NamedTuple):
    """Messages that were fetched for the filter; `judge` runs the filter."""

    wanted: SqlFilter
    known: dict[int, KeyRange]  # for each queue with unread messages, from the group's progress on
    to_judge: Sequence[KeyRange]  # the ranges to judge now, in order; `accepted` is still empty
    ahead: Unjudged  # new messages, in these ranges
    known_behind: dict[int, bool]
    behind: Unjudged  # of open message groups: messages that the scan has passed
    is_all: bool  # no messages follow these


class FilterResults(NamedTuple):
    """The filter's results. `is_all`: all messages that the group may read next are judged."""

    judged: Judged
    is_all: bool


def fetch(conn: Connection, request: Receive, known: Judged, enough: int, work: Work) -> FetchedMessages:
    """The messages that the request's filter must judge now, so that it accepts `enough` messages."""
    wanted = request.wanted
    assert isinstance(wanted, SqlFilter), "the database applies other filters"
    batch = receive.receive_batch_of([request])._replace(capacity=max(enough, request.batch_size))
    queues = scan.queues_of(conn, batch)
    ranges = {queue.queue_id: _judged_range(known, queue) for queue in queues if queue.next_offset < queue.end_offset}
    behind = Unjudged([], 0)
    if batch.takes_groups:
        behind = message_groups.to_judge(conn, batch, queues, wanted, work.messages(wanted))
    if batch.by_priority:
        ranges, is_short = _most_urgent(queues, ranges, enough)
    else:
        is_short = sum(len(each.accepted) for each in ranges.values()) < enough
    to_judge = _to_judge(queues, ranges, work.messages(wanted), enough) if is_short else []
    bounds = encode_rows([(number, each.from_key, each.to_key) for number, each in enumerate(to_judge)])
    ahead = _BETWEEN.rows(conn, wanted, {"bounds": bounds}) if to_judge else Unjudged([], 0)
    is_all = sum(each.to_key - each.from_key for each in to_judge) == _unjudged(queues, ranges)
    return FetchedMessages(wanted, ranges, to_judge, ahead, dict(known.behind), behind, is_all)


def judge(fetched: FetchedMessages, work: Work) -> FilterResults:
    """Run the filter until the work limit is reached, on at least one new message and one of an open message group."""
    half = Work(work.left // 2)
    behind = _judge_behind(fetched, half)
    work.left -= work.left // 2 - half.left
    rows = sorted(fetched.ahead.rows, key=itemgetter(0))
    keys, judged = work.judge(fetched.wanted, rows, fetched.ahead.characters) if rows else ([], 0)
    last_key = rows[judged - 1][0] if judged < len(rows) else None
    wanted = {queue_id: list(several) for queue_id, several in groupby(keys, queue_of)}
    ranges = dict(fetched.known)
    for each in fetched.to_judge:
        queue_id = queue_of(each.from_key)
        end_key = each.to_key
        if last_key is not None:
            if each.from_key > last_key:
                continue
            end_key = min(end_key, last_key + 1)
        known = ranges[queue_id]
        ranges[queue_id] = KeyRange(known.from_key, end_key, [*known.accepted, *wanted.get(queue_id, ())])
    return FilterResults(Judged(ranges, behind), fetched.is_all and last_key is None)


def _judge_behind(fetched: FetchedMessages, work: Work) -> dict[int, bool]:
    rows = fetched.behind.rows
    new = [row for row in rows if row[0] not in fetched.known_behind]
    keys, judged = work.judge(fetched.wanted, new, fetched.behind.characters) if new else ([], 0)
    wanted = set(keys)
    answers = {row[0]: row[0] in wanted for row in new[:judged]}
    known = {**fetched.known_behind, **answers}
    return {row[0]: known[row[0]] for row in rows if row[0] in known}


def _judged_range(known: Judged, queue: QueueToScan) -> KeyRange:
    from_key = message_key(queue.queue_id, max(queue.next_offset, queue.min_offset))
    return known.range_of(queue.queue_id, from_key) or KeyRange(from_key, from_key, ())


def _most_urgent(
    queues: Iterable[QueueToScan], ranges: dict[int, KeyRange], enough: int
) -> tuple[dict[int, KeyRange], bool]:
    """The ranges with the `enough` most urgent messages, and whether the filter must judge more.

    The filter must judge more if an unjudged message may be more urgent. Other ranges are left out to limit memory.
    """
    needed: dict[int, KeyRange] = {}
    count, is_short = 0, False
    for queue in queues:
        if queue.queue_id in ranges and count < enough:
            known = needed[queue.queue_id] = ranges[queue.queue_id]
            count += len(known.accepted)
            is_short = is_short or (count < enough and known.to_key < message_key(queue.queue_id, queue.end_offset))
    return needed, is_short


def _to_judge(queues: Iterable[QueueToScan], ranges: dict[int, KeyRange], count: int, enough: int) -> list[KeyRange]:
    """The ranges that follow the judged ones, in the order of the queues; at most `count` offsets together."""
    to_judge: list[KeyRange] = []
    for queue in queues:
        known = ranges.get(queue.queue_id)
        if known is None or count <= 0 or len(known.accepted) >= enough:
            continue
        to_key = min(message_key(queue.queue_id, queue.end_offset), known.to_key + count)
        if to_key > known.to_key:
            to_judge.append(KeyRange(known.to_key, to_key, ()))
            count -= to_key - known.to_key
    return to_judge


def _unjudged(queues: Iterable[QueueToScan], ranges: dict[int, KeyRange]) -> int:
    ends = {queue.queue_id: message_key(queue.queue_id, queue.end_offset) for queue in queues}
    return sum(max(0, ends[queue_id] - each.to_key) for queue_id, each in ranges.items())


_BETWEEN = FilterQuery(in_bounds)
