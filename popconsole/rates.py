"""What the samples of a pulse say: rates, trends, and the series of the live plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import starmap
from typing import Any, Final

from popclient.admin import Chart
from popconsole.pulse import Backlog, Pulse, Sample

WINDOW_S: Final = 15 * 60.0
RECENT_S: Final = 60.0
LINES_MAX: Final = 5  # groups with a line of their own


@dataclass(frozen=True, slots=True)
class Trend:
    """A group's recent past. None where there is only one sample yet.

    out: messages done per second. growth: how many more it has ready than a minute ago.
    """

    out: float | None = None
    growth: int | None = None

    @property
    def is_growing(self) -> bool:
        return self.growth is not None and self.growth > 0


def every(pulse: Pulse) -> int:
    """Seconds between two questions of a page for its plots."""
    return max(3, round(pulse.pause_s))


def recent(samples: Sequence[Sample]) -> tuple[Sample, Sample] | None:
    """The span of every rate: the last sample, and the first one of the minute before it, or the one before it.

    None where there is only one yet.
    """
    if len(samples) < 2:
        return None
    last = samples[-1]
    return next((each for each in samples if each.at >= last.at - RECENT_S and each is not last), samples[-2]), last


def spans(samples: Sequence[Sample]) -> list[tuple[Sample, Sample]]:
    """The same span for each sample but the first."""
    found, first = [], 0
    for index, last in enumerate(samples[1:], 1):
        while first < index - 1 and samples[first].at < last.at - RECENT_S:
            first += 1
        found.append((samples[first], last))
    return found


def trends(samples: Sequence[Sample]) -> dict[str, Trend]:
    """The trend of each group over the last minute."""
    if not samples:
        return {}
    if (span := recent(samples)) is None:
        return {name: Trend() for name in samples[-1].groups}
    return {name: _trend(name, *span) for name in samples[-1].groups}


def _trend(name: str, first: Sample, last: Sample) -> Trend:
    now, then = last.groups[name], first.groups.get(name)
    if then is None:
        return Trend()
    return Trend(max(0.0, (now.left - then.left) / (last.at - first.at)), now.ready - then.ready)


def incoming(samples: Sequence[Sample]) -> float | None:
    """Messages stored per second over the last minute."""
    span = recent(samples)
    return None if span is None else _appended(*span)


def outgoing(samples: Sequence[Sample]) -> float | None:
    """Messages done per second by all groups over the last minute."""
    known = [each.out for each in trends(samples).values() if each.out is not None]
    return sum(known) if known else None


def series(samples: Sequence[Sample]) -> dict[str, Any]:
    """The last fifteen minutes for the plots: times in epoch seconds, and a list of equal length for each line."""
    if not samples:
        return {"at": [], "in": [], "out": [], "ready": [], "inflight": [], "p50": [], "p99": []}
    kept = [each for each in samples if each.at >= samples[-1].at - WINDOW_S]
    pairs = spans(kept)
    names = busiest(kept)
    quantiles = [commit_quantiles(before, after) for before, after in pairs]
    return {
        "at": [round(after.at, 1) for _, after in pairs],
        "in": list(starmap(_appended, pairs)),
        "out": [{"name": name, "values": [_done(name, before, after) for before, after in pairs]} for name in names],
        "ready": [after.total(_ready) for _, after in pairs],
        "inflight": [after.total(_inflight) for _, after in pairs],
        "p50": [each[0] for each in quantiles],
        "p99": [each[1] for each in quantiles],
    }


def chart_lines(chart: Chart) -> dict[str, Any]:
    """The same for the charts of a group or a topic: rates, lag, how old its oldest ready message is, in seconds, and
    how long first deliveries took, in ms."""
    points = chart.points
    return {
        "at": [round(each.at.timestamp(), 1) for each in points],
        "in": [None if each.stored_rate is None else round(each.stored_rate, 2) for each in points],
        "done": [None if each.done_rate is None else round(each.done_rate, 2) for each in points],
        "ready": [each.ready for each in points],
        "inflight": [each.inflight for each in points],
        "waiting": [each.waiting_retry for each in points],
        "age": [_seconds(each.oldest_age) for each in points],
        "mean": [_ms(each.mean_delay) for each in points],
        "slow": [_ms(each.slow_delay) for each in points],
        "every": max(3, min(60, round(chart.step.total_seconds()))),
    }


def _seconds(given: timedelta | None) -> float | None:
    return None if given is None else round(given.total_seconds(), 1)


def _ms(given: timedelta | None) -> float | None:
    return None if given is None else round(1_000 * given.total_seconds())


def busiest(samples: Sequence[Sample]) -> list[str]:
    """The groups that got most done between the first sample and the last."""
    first, last = samples[0], samples[-1]
    gained = {name: now.left - first.groups.get(name, now).left for name, now in last.groups.items()}
    return sorted(gained, key=lambda name: (-gained[name], name))[:LINES_MAX]


def commit_quantiles(before: Sample, after: Sample) -> tuple[float | None, float | None]:
    """The 50th and 99th percentile of commits between two samples, in ms; None where there was none."""
    now, then = after.commits, before.commits
    if now is None or then is None or now.limits != then.limits:
        return None, None
    counts = [late - early for late, early in zip(now.counts, then.counts, strict=True)]
    if min(counts) < 0 or not sum(counts):
        return None, None  # another server answered, or there was no commit
    return _quantile(now.limits, counts, 0.5), _quantile(now.limits, counts, 0.99)


def _quantile(limits: Sequence[float], counts: Sequence[int], share: float) -> float:
    """In ms; within its limits the values are taken as evenly spread, as Prometheus does. Above all: the last limit."""
    wanted, below = share * sum(counts), 0.0
    for limit, low, count in zip(limits, (0.0, *limits), counts, strict=False):
        if count and below + count >= wanted:
            return round(1_000 * (low + (limit - low) * (wanted - below) / count), 2)
        below += count
    return 1_000 * limits[-1]


def _ready(backlog: Backlog) -> int:
    return backlog.ready


def _inflight(backlog: Backlog) -> int:
    return backlog.inflight


def _appended(before: Sample, after: Sample) -> float:
    return round(max(0.0, (after.appended - before.appended) / (after.at - before.at)), 2)


def _rate(before: Sample, after: Sample, of: Callable[[Sample], int]) -> float:
    return round(max(0.0, (of(after) - of(before)) / (after.at - before.at)), 2)


def _done(name: str, before: Sample, after: Sample) -> float | None:
    if name not in before.groups or name not in after.groups:
        return None
    return _rate(before, after, lambda each: each.groups[name].left)
