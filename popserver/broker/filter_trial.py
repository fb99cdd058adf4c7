"""A SQL filter tried on stored messages: who would get what, before anybody does."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from popserver.broker.reader import Reader
from popserver.domain.filtering import SqlFilter
from popserver.domain.topic import MessageQueue, Topic
from popserver.store import filter_trial
from popserver.store.filter_trial import STEP_MESSAGES, Match
from popserver.store.work import Work

__all__ = ["EXAMINED_MAX", "SHOWN_DEFAULT", "SHOWN_MAX", "FilterTrial", "Match", "try_filter"]

EXAMINED_MAX = 100_000
# What all of it may cost, in units of about 0.1 µs: a filter that asks for much is tried on fewer messages.
UNITS_MAX = 20_000_000
SHOWN_DEFAULT = 10
SHOWN_MAX = 100  # their properties, of at most 16 KiB each, travel in one answer


class FilterTrial(NamedTuple):
    """Of `examined` messages `matched` are wanted.

    `incomparable` more are not, because a property is not what the expression takes it for. Not `complete`: there are
    older messages that were left out. `newest` are some of the matches, newest first.
    """

    examined: int
    matched: int
    incomparable: int
    complete: bool
    newest: list[Match]


async def try_filter(reader: Reader, topic: Topic, wanted: SqlFilter, since_ms: int, limit: int) -> FilterTrial:
    """Judge what the topic stored since then, at most the newest 100,000 and what 2 s are enough for: of each queue
    its share."""
    share = max(1, EXAMINED_MAX // len(topic.queues))
    units = UNITS_MAX // len(topic.queues)
    parts = [await _try_on_queue(reader, each, wanted, since_ms, limit, share, units) for each in topic.queues]
    newest = sorted(
        (match for part in parts for match in part.newest),
        key=lambda each: (each.stored_at_ms, each.offset),
        reverse=True,
    )
    return FilterTrial(
        sum(part.examined for part in parts),
        sum(part.matched for part in parts),
        sum(part.incomparable for part in parts),
        all(part.complete for part in parts),
        newest[:limit],
    )


async def _try_on_queue(
    reader: Reader, queue: MessageQueue, wanted: SqlFilter, since_ms: int, limit: int, share: int, units: int
) -> FilterTrial:
    """In steps, each a read of its own: other reads come in between."""
    examined = matched = incomparable = 0
    newest: list[Match] = []
    end_key: int | None = filter_trial.end_of(queue)
    work = Work()
    while end_key is not None and examined < share and units > 0:
        work.again()
        look = partial(
            filter_trial.step,
            wanted=wanted,
            queue=queue,
            end_key=end_key,
            since_ms=since_ms,
            limit=min(STEP_MESSAGES, share - examined),
            work=work,
        )
        step = await reader.read(look)
        units -= work.used
        examined += step.examined
        matched += len(step.matches)
        incomparable += step.incomparable
        newest += step.matches[: limit - len(newest)]
        end_key = step.next_key
    return FilterTrial(examined, matched, incomparable, end_key is None, newest)
