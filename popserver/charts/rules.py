"""The steps of charts, and what their points say. Pure.

A chart has four levels: the longer its range, the longer its steps. Each level of a group or topic has a fixed number
of slots, which are used in turn. So the rows of a chart have a limit, however long the server runs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import accumulate, pairwise
from statistics import median_low
from typing import Final, NamedTuple

from popserver.administration.facts import Lag
from popserver.model.names import is_system_derived
from popserver.model.retry import SECOND_MS


class Level(NamedTuple):
    """Steps of one length in seconds, and for how many of them there are points."""

    step_s: int
    size: int

    @property
    def step_ms(self) -> int:
        return self.step_s * SECOND_MS

    @property
    def range_ms(self) -> int:
        return self.step_ms * self.size

    def begin_ms(self, at_ms: int) -> int:
        """When the step of this moment begins."""
        return at_ms - at_ms % self.step_ms

    def slot(self, at_ms: int) -> int:
        return at_ms // self.step_ms % self.size


# 15 min, 1 h, 24 h and 7 d: together 432 points for each group and topic.
LEVELS: Final = (Level(15, 60), Level(60, 60), Level(600, 144), Level(3_600, 168))
GAP_STEPS: Final = 2.5  # after a longer pause the line of a chart is broken


def level_for(range_ms: int) -> Level:
    """The finest level that has the whole range; the coarsest for a longer one."""
    return next((each for each in LEVELS if each.range_ms >= range_ms), LEVELS[-1])


class ChartKind(StrEnum):
    """What a chart is about."""

    GROUP = "GROUP"
    TOPIC = "TOPIC"


class Owner(NamedTuple):
    """The group or topic of a chart."""

    kind: ChartKind
    owner_id: int


class ChartCounts(NamedTuple):
    """A group over all of its topics, or a topic over all of its groups, at one moment.

    appended: messages that its topics ever stored. done: so many of them, in each of its groups, are done.
    """

    appended: int
    done: int
    ready: int
    inflight: int
    waiting_retry: int
    oldest_age_ms: int


class Delays(NamedTuple):
    """First deliveries in one step: their number, the sum of their delays, and within what 99 % of them came."""

    delivered: int
    delay_ms: int
    slow_ms: int


class TopicCount(NamedTuple):
    """How many messages a topic ever stored."""

    topic_id: int
    name: str
    appended: int


class Point(NamedTuple):
    """A stored point. The counts are None if only deliveries were written."""

    at_ms: int
    appended: int | None
    done: int | None
    ready: int | None
    inflight: int | None
    waiting_retry: int | None
    oldest_age_ms: int | None
    delivered: int
    delay_ms: int
    slow_ms: int


class Shown(NamedTuple):
    """A point as it is drawn: rates in messages per second since the point before. None where nothing is known."""

    at_ms: int
    stored_rate: float | None = None
    done_rate: float | None = None
    ready: int | None = None
    inflight: int | None = None
    waiting_retry: int | None = None
    oldest_age_ms: int | None = None
    mean_delay_ms: float | None = None
    slow_delay_ms: int | None = None


def counts_of(lags: Iterable[Lag], topics: Iterable[TopicCount], now_ms: int) -> dict[Owner, ChartCounts]:
    """The counts of each group that has met a topic, and of each topic of users."""
    found: dict[Owner, list[Lag]] = {}
    appended = {each.topic_id: each.appended for each in topics if not is_system_derived(each.name)}
    of_topics: dict[int, list[Lag]] = {topic_id: [] for topic_id in appended}
    for each in lags:
        found.setdefault(Owner(ChartKind.GROUP, each.group_id), []).append(each)
        if each.topic_id in of_topics:
            of_topics[each.topic_id].append(each)
    counts = {owner: _sum(of_one, sum(each.appended for each in of_one), now_ms) for owner, of_one in found.items()}
    counts |= {Owner(ChartKind.TOPIC, key): _sum(of_one, appended[key], now_ms) for key, of_one in of_topics.items()}
    return counts


def _sum(lags: Sequence[Lag], appended: int, now_ms: int) -> ChartCounts:
    oldest_ms = [each.oldest_ready_ms for each in lags if each.oldest_ready_ms is not None and each.ready]
    return ChartCounts(
        appended,
        sum(each.appended - each.ready - each.inflight - each.waiting_retry - each.dead_letters for each in lags),
        sum(each.ready for each in lags),
        sum(each.inflight for each in lags),
        sum(each.waiting_retry for each in lags),
        max((now_ms - each for each in oldest_ms), default=0),
    )


def delays_of(counts: Sequence[int], total_ms: float, limits: Sequence[float]) -> Delays:
    """What a histogram says: `counts` has one value more than `limits`, for delays above all of them."""
    delivered = sum(counts)
    rank = bisect_left(list(accumulate(counts)), 0.99 * delivered)
    return Delays(delivered, round(total_ms), round(limits[min(rank, len(limits) - 1)]))


def first_series(owners: Iterable[Owner], series_max: int) -> set[Owner]:
    """The owners whose charts are kept if there are too many: those that were created first."""
    return set(sorted(owners, key=lambda each: (each.owner_id, each.kind))[:series_max])


def shown(points: Sequence[Point], level: Level) -> list[Shown]:
    """The points with rates, the oldest first. A pause is a point without values, so that no line goes over it."""
    if not points:
        return []
    found = [_shown(None, points[0])]
    # A large store is looked at less often than once in a step.
    usual_ms = median_low([after.at_ms - before.at_ms for before, after in pairwise(points)] or [0])
    for before, after in pairwise(points):
        if after.at_ms - before.at_ms > GAP_STEPS * max(level.step_ms, usual_ms):
            found += [Shown(before.at_ms + level.step_ms), _shown(None, after)]
        else:
            found.append(_shown(before, after))
    return found


def _shown(before: Point | None, after: Point) -> Shown:
    return Shown(
        after.at_ms,
        None if before is None else _rate(before, after, before.appended, after.appended),
        None if before is None else _rate(before, after, before.done, after.done),
        after.ready,
        after.inflight,
        after.waiting_retry,
        after.oldest_age_ms,
        after.delay_ms / after.delivered if after.delivered else None,
        after.slow_ms if after.delivered else None,
    )


def _rate(before: Point, after: Point, was: int | None, became: int | None) -> float | None:
    if was is None or became is None:
        return None
    return max(0.0, (became - was) * SECOND_MS / (after.at_ms - before.at_ms))
