"""Filter trial: test a SQL filter on stored messages before a consumer uses it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, select

from popserver.database.schema import message
from popserver.engine.reader import Reader
from popserver.filters import SqlFilter
from popserver.messages.ranges import Work
from popserver.messages.seek import offset_at
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
    some of the matches, newest first. `left` has the queues in which older messages were left out, by number: the
    offset before which they are.
    """

    examined: int
    matched: int
    incomparable: int
    newest: list[Match]
    left: Mapping[int, int]

    @property
    def complete(self) -> bool:
        return not self.left


async def run_trial(
    reader: Reader,
    topic: Topic,
    wanted: SqlFilter,
    since_ms: int,
    limit: int,
    *,
    until_ms: int | None = None,
    before: Mapping[int, int] | None = None,
) -> FilterTrial:
    """Try the filter on messages stored since `since_ms` and before `until_ms`: at most the newest 100,000 of them, and
    at most 2 s of work, shared by the queues. `before`: go on where an earlier trial ended, with its `left`."""
    queues = [each for each in topic.queues if before is None or each.number in before]
    share = EXAMINED_MAX // max(1, len(queues))
    units = UNITS_MAX // max(1, len(queues))
    parts = []
    for each in queues:
        end_key = end_of(each)
        if before is not None:
            end_key = min(end_key, message_key(each.queue_id, before[each.number]))
        elif until_ms is not None:
            end = await reader.read(partial(offset_at, topic=topic, place=each, at_ms=until_ms))
            end_key = message_key(each.queue_id, end)
        parts.append(await _try_on_queue(reader, each, wanted, end_key, since_ms, limit, max(1, share), units))
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
        {number: offset for part in parts for number, offset in part.left.items()},
    )


async def _try_on_queue(
    reader: Reader,
    queue: MessageQueue,
    wanted: SqlFilter,
    before_key: int,
    since_ms: int,
    limit: int,
    share: int,
    units: int,
) -> FilterTrial:
    """Try one queue in steps, before a message key. Each step is a read of its own, so that others run in between."""
    examined = matched = incomparable = 0
    newest: list[Match] = []
    end_key: int | None = before_key
    work = Work()
    while end_key is not None and examined < share and units > 0:
        work.start_again()
        query = partial(
            trial_step,
            wanted=wanted,
            queue=queue,
            end_key=end_key,
            since_ms=since_ms,
            limit=min(STEP_MESSAGES, share - examined),
            work=work,
        )
        step = await reader.read(query)
        units -= work.used
        examined += step.examined
        matched += len(step.matches)
        incomparable += step.incomparable
        newest += step.matches[: limit - len(newest)]
        end_key = step.next_key
    left = {} if end_key is None else {queue.number: offset_of(end_key)}
    return FilterTrial(examined, matched, incomparable, newest, left)


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


class TrialStep(NamedTuple):
    """The outcome of one step.

    `incomparable` messages do not match because a property does not have the type that the expression needs.
    `next_key` is where the next step ends; None after the last step.
    """

    examined: int
    incomparable: int
    matches: list[Match]
    next_key: int | None


def end_of(queue: MessageQueue) -> int:
    """The message key where the first step through a queue ends: after its newest message."""
    return message_key(queue.queue_id + 1, 0)


def trial_step(
    conn: Connection, wanted: SqlFilter, queue: MessageQueue, end_key: int, since_ms: int, limit: int, work: Work
) -> TrialStep:
    """Try the filter on up to `limit` messages before `end_key`, newest first, stored at or after `since_ms`.

    The step ends early if the work limit is reached; it tries at least one message.
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
            keys = tuple(json.loads(row.keys)) if row.keys else ()
            matches.append(Match(message_id, queue.number, offset, row.stored_at_ms, row.tag, keys, properties))
        work.spend(wanted.cost(row.tag, properties))
        if work.is_done:
            break
    # Stored times in a queue almost never go back: messages before an old one are older.
    has_more = len(recent) == limit or examined < len(recent)
    return TrialStep(examined, incomparable, matches, rows[examined - 1].message_key if has_more else None)


_BACKWARDS = (
    select(
        message.c.message_key,
        message.c.message_id,
        message.c.stored_at_ms,
        message.c.tag,
        message.c["keys"],
        message.c.properties,
    )
    .where(message.c.message_key >= bindparam("from_key"), message.c.message_key < bindparam("end_key"))
    .order_by(message.c.message_key.desc())
    .limit(bindparam("limit"))
)
