"""Filter trial: test a SQL filter on stored messages before a consumer uses it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection

from popserver.engine.reader import Reader
from popserver.filters import SqlFilter
from popserver.messages import parts
from popserver.messages.by_key import HeadRow
from popserver.messages.ranges import Work
from popserver.model.message import id_from_bytes
from popserver.model.topic import MessageQueue, Topic, message_key, offset_of

EXAMINED_MAX = 100_000
# The total work, in units of about 0.1 µs: an expensive filter is tried on fewer messages.
UNITS_MAX = 20_000_000
SHOWN_DEFAULT = 10
SHOWN_MAX = 100  # messages; one answer has their properties, at most 16 KiB each


class FilterTrial(NamedTuple):
    """The filter accepts `matched` of `examined` messages.

    It refuses `incomparable` messages because a property does not have the type that the expression needs. `newest` are
    some of the matches, newest first. Not `complete`: older messages were left out.
    """

    examined: int
    matched: int
    incomparable: int
    newest: list[Match]
    complete: bool


async def run_trial(reader: Reader, topic: Topic, wanted: SqlFilter, since_ms: int, limit: int) -> FilterTrial:
    """Try the filter on messages stored since `since_ms`, and count all matches: at most the newest 100,000 messages,
    and at most 2 s of work, shared by the queues."""
    count = max(1, len(topic.queues))
    share = QueueShare(max(1, EXAMINED_MAX // count), UNITS_MAX // count)
    parts = [await try_on_queue(reader, each, wanted, end_of(each), share, limit, since_ms) for each in topic.queues]
    newest = sorted(
        (match for part in parts for match in part.newest),
        key=lambda each: (each.stored_at_ms, each.offset),
        reverse=True,
    )
    return FilterTrial(
        sum(part.examined for part in parts),
        sum(part.matched for part in parts),
        sum(part.incomparable for part in parts),
        newest[:limit],
        not any(part.has_more for part in parts),
    )


class QueueShare(NamedTuple):
    """What one queue is allowed: so many messages, units of work, and matches. It may always examine one message."""

    messages: int
    units: int
    matches: int = EXAMINED_MAX


class QueueTrial(NamedTuple):
    """A trial of one queue. `newest` are some of the matches, newest first.

    `units` of work were done. `has_more`: older messages were left out. `ended_at`: the message at which the share was
    used up, as the time of storing and the offset; None if it ended at a time, or with the queue.
    """

    examined: int
    matched: int
    incomparable: int
    newest: list[Match]
    units: int
    has_more: bool
    ended_at: tuple[int, int] | None


async def try_on_queue(
    reader: Reader,
    queue: MessageQueue,
    wanted: SqlFilter,
    before_key: int,
    share: QueueShare,
    limit: int,
    since_ms: int,
    enough_ms: int = 0,
    lite_topic: str | None = None,
) -> QueueTrial:
    """Try one queue in steps, before a message key. Each step is a read of its own, so that others run in between.

    Messages stored before `enough_ms` are left out, those before `since_ms` do not count. Keeps `limit` matches.
    `lite_topic`: only the messages of this one are tried.
    """
    examined = matched = incomparable = 0
    newest: list[Match] = []
    end_key, units = before_key, 0
    work = Work()
    while True:
        work.start_again()
        query = partial(
            trial_step,
            wanted=wanted,
            queue=queue,
            end_key=end_key,
            since_ms=since_ms,
            limit=min(STEP_MESSAGES, share.messages - examined),
            work=work,
            matches_max=share.matches - matched,
            enough_ms=enough_ms,
            lite_topic=lite_topic,
        )
        step = await reader.read(query)
        units += work.used
        examined += step.examined
        matched += len(step.matches)
        incomparable += step.incomparable
        newest += step.matches[: limit - len(newest)]
        if step.next_key is None or step.is_enough:
            return QueueTrial(examined, matched, incomparable, newest, units, step.next_key is not None, None)
        end_key = step.next_key
        if examined == share.messages or units >= share.units or matched == share.matches:
            return QueueTrial(examined, matched, incomparable, newest, units, True, (step.last_ms, offset_of(end_key)))


# One step of a trial: from the newest message of a queue backwards, so that no statement is long. Bodies are not read.

STEP_MESSAGES = 1_000


class Match(NamedTuple):
    """A message that the filter accepts, without its body."""

    message_id: str
    queue_number: int
    offset: int
    stored_at_ms: int
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]


def match_of(head: HeadRow, queue_number: int, keys: Iterable[str], properties: dict[str, str]) -> Match:
    """A message that matches, with its keys and properties decoded."""
    message_id, offset = id_from_bytes(head.message_id), offset_of(head.message_key)
    return Match(message_id, queue_number, offset, head.stored_at_ms, head.tag, tuple(keys), properties)


class TrialStep(NamedTuple):
    """The outcome of one step.

    `incomparable` messages do not match because a property does not have the type that the expression needs.
    `next_key` is where the next step ends; None after the last step. `last_ms`: when the last of the examined messages
    was stored. `is_enough`: the next message was stored before the time that is enough.
    """

    examined: int
    incomparable: int
    matches: list[Match]
    next_key: int | None
    last_ms: int
    is_enough: bool


def end_of(queue: MessageQueue) -> int:
    """The message key where the first step through a queue ends: after its newest message."""
    return message_key(queue.queue_id + 1, 0)


def trial_step(
    conn: Connection,
    wanted: SqlFilter,
    queue: MessageQueue,
    end_key: int,
    since_ms: int,
    limit: int,
    work: Work,
    matches_max: int = STEP_MESSAGES,
    enough_ms: int = 0,
    lite_topic: str | None = None,
) -> TrialStep:
    """Try the filter on up to `limit` messages before `end_key`, newest first, stored at or after `since_ms`.

    The step ends early if the work limit is reached, after `matches_max` matches, and before a message that was stored
    before `enough_ms`. It tries at least one message, unless that one was stored before these times.
    """
    limit = min(limit, work.messages(wanted))
    first = message_key(queue.queue_id, 0)
    rows = parts.page(conn, first, end_key, limit, message_group=lite_topic, newest_first=True)
    # Stored times in a queue never go back: messages before an old one are older.
    recent = [row for row in rows if row.stored_at_ms >= since_ms]
    tried = [row for row in recent if row.stored_at_ms >= enough_ms]
    examined, incomparable, matches = 0, 0, []
    for examined, row in enumerate(tried, start=1):  # noqa: B007 - the last number is their count
        properties = json.loads(row.properties) if row.properties else {}
        verdict = wanted.verdict(row.tag, properties)
        incomparable += verdict is None
        if verdict:
            matches.append(match_of(row, queue.number, json.loads(row.keys) if row.keys else (), properties))
        work.spend(wanted.cost(row.tag, properties))
        if work.is_done or len(matches) == matches_max:
            break
    has_more = len(recent) == limit or examined < len(recent)
    next_key, last_ms = (rows[examined - 1].message_key, rows[examined - 1].stored_at_ms) if examined else (end_key, 0)
    is_enough = examined == len(tried) < len(recent)
    return TrialStep(examined, incomparable, matches, next_key if has_more else None, last_ms, is_enough)
