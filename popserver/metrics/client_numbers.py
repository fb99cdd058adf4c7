"""What clients measure, added up over all clients: one histogram for each topic and group, whatever their number.

A client sends totals since its start, again and again. The server keeps what each client sent last, and adds the
differences. So what is kept grows with the clients, and has a budget; what is exported does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from popserver.engine.clock import Clock
from popserver.engine.meters import Histogram
from popserver.metrics.families import Families
from popserver.metrics.server_numbers import Names
from popserver.model.budget import Budget
from popserver.model.names import Resource
from popserver.model.retry import MINUTE_MS

LABEL_LENGTH_MAX = 255
TOTALS_MAX = 5_000  # histograms that are exported
FORGET_MS = 10 * MINUTE_MS  # after the last time that a client sent a number; they send each minute
OLD_MS = 3 * MINUTE_MS  # what is cached is exported for so long after that
COUNT_MAX = 1 << 53

# The histograms that official clients send, in ms, with their limits.
LIMITS_MS: dict[str, tuple[float, ...]] = {
    "rocketmq_send_cost_time": (1, 5, 10, 20, 50, 200, 500),
    "rocketmq_delivery_latency": (1, 5, 10, 20, 50, 200, 500),
    "rocketmq_await_time": (1, 5, 20, 100, 1_000, 5_000, 10_000),
    "rocketmq_process_time": (1, 5, 10, 100, 1_000, 10_000, 60_000),
}
CACHED = ("rocketmq_consumer_cached_messages", "rocketmq_consumer_cached_bytes")
_WITH_GROUP = {"rocketmq_delivery_latency", "rocketmq_await_time", "rocketmq_process_time", *CACHED}
_WITH_STATUS = {"rocketmq_send_cost_time", "rocketmq_process_time"}


class Series(NamedTuple):
    """What a number is of. `group` and `status` are empty for metrics without them."""

    metric: str
    topic: Resource
    group: Resource
    status: str


class ClientHistogram(NamedTuple):
    """A histogram of one client; `started_ns` is when the client began to count.

    With `is_total` it has all values since then, otherwise those since the last one.
    """

    client_id: str
    series: Series
    limits: Sequence[float]
    counts: Sequence[int]
    total: float
    started_ns: int
    is_total: bool


class ClientGauge(NamedTuple):
    """What a client has cached now."""

    client_id: str
    series: Series
    value: float


class _Last:
    """What a client sent last."""

    __slots__ = ("counts", "seen_ms", "started_ns", "total")

    def __init__(self, counts: Sequence[int], total: float, started_ns: int, seen_ms: int) -> None:
        self.counts = counts
        self.total = total
        self.started_ns = started_ns
        self.seen_ms = seen_ms


class ClientMeters:
    """The numbers of all clients. `kept` counts what is kept of each client. Used in the event loop."""

    def __init__(self, kept: Budget, clock: Clock) -> None:
        self._kept = kept
        self._clock = clock
        self._started_ns = clock.calendar_ms() * 1_000_000
        self._last: dict[tuple[str, Series], _Last] = {}
        self._totals: dict[Series, Histogram] = {}
        self._swept_ms = clock.now_ms()

    def take(self, sent: ClientHistogram | ClientGauge) -> str:
        """Add what a client sent. Returns why it is left out; empty if it is not."""
        now_ms = self._clock.now_ms()
        if now_ms - self._swept_ms >= MINUTE_MS:
            self._sweep(now_ms)
        if reason := _fault(sent):
            return reason
        if isinstance(sent, ClientGauge):
            last = self._last_of(sent.client_id, sent.series, now_ms)
            if last is None:
                return self._kept.refusal("one more series").sentence
            last.total, last.seen_ms = sent.value, now_ms
            return ""
        return self._take_histogram(sent, now_ms)

    def add_to(self, families: Families, names: Names) -> None:
        """Add the samples of topics and groups that exist; forget the others."""
        topics, groups = {*names.topics.values()}, {*names.groups.values()}
        for series, histogram in list(self._totals.items()):
            if series.topic not in topics or (series.metric in _WITH_GROUP and series.group not in groups):
                self._totals.pop(series, None)  # another thread may do the same
            elif families.has_room(len(histogram.counts) + 2):
                families.add_histogram(series.metric, histogram, *_labels(series))
        for series, value in self._cached().items():
            if series.topic in topics and series.group in groups and families.has_room(1):
                families.add(series.metric, value, *_labels(series))

    def _take_histogram(self, sent: ClientHistogram, now_ms: int) -> str:
        total = self._totals.get(sent.series)
        if total is None:
            if len(self._totals) >= TOTALS_MAX:
                self._kept.refused += 1
                return f"there are {TOTALS_MAX} series already; there is no room for those of more topics and groups"
            total = Histogram(LIMITS_MS[sent.series.metric])
        if sent.is_total:
            last = self._last_of(sent.client_id, sent.series, now_ms)
            if last is None:
                return self._kept.refusal("one more series").sentence
            counts, added = self._since(sent, last)
            last.counts, last.total = tuple(sent.counts), sent.total
            last.started_ns, last.seen_ms = sent.started_ns, now_ms
        else:
            counts, added = sent.counts, sent.total
        self._totals[sent.series] = total
        total.counts = [have + more for have, more in zip(total.counts, counts, strict=True)]
        total.total += added
        return ""

    def _since(self, sent: ClientHistogram, last: _Last) -> tuple[Sequence[int], float]:
        """The values since the client sent its last totals."""
        if last.counts and last.started_ns == sent.started_ns:
            grown = [now - before for now, before in zip(sent.counts, last.counts, strict=True)]
            if min(grown) >= 0 and sent.total >= last.total:
                return grown, sent.total - last.total
        elif not last.counts and sent.started_ns < self._started_ns:
            return [0] * len(sent.counts), 0.0  # the client counted them before this server started
        return sent.counts, sent.total

    def _last_of(self, client_id: str, series: Series, now_ms: int) -> _Last | None:
        """What the client sent last of this series; None if there is no room for a new one."""
        last = self._last.get((client_id, series))
        if last is None and self._kept.take():
            last = self._last[client_id, series] = _Last((), 0.0, 0, now_ms)
        return last

    def _cached(self) -> dict[Series, float]:
        now_ms, found = self._clock.now_ms(), dict[Series, float]()
        for (_, series), last in list(self._last.items()):
            if series.metric in CACHED and now_ms - last.seen_ms <= OLD_MS:
                found[series] = found.get(series, 0.0) + last.total
        return found

    def _sweep(self, now_ms: int) -> None:
        """Forget clients that send nothing any more. Their values stay in the totals."""
        self._swept_ms = now_ms
        for key in [key for key, last in self._last.items() if now_ms - last.seen_ms > FORGET_MS]:
            del self._last[key]
            self._kept.give_back()


def series_of(metric: str, topic: Resource, group: Resource, status: str) -> Series:
    """The series of a metric, without the labels that it does not have."""
    return Series(
        metric,
        topic,
        group if metric in _WITH_GROUP else Resource("", ""),
        ("success" if status == "success" else "failure") if metric in _WITH_STATUS else "",
    )


def _labels(series: Series) -> Iterator[str]:
    yield str(series.topic)
    if series.metric in _WITH_GROUP:
        yield str(series.group)
    if series.metric in _WITH_STATUS:
        yield series.status


def _fault(sent: ClientHistogram | ClientGauge) -> str:
    """What is wrong with the numbers; empty if nothing is."""
    series = sent.series
    for name in (sent.client_id, *series.topic, *series.group):
        if len(name) > LABEL_LENGTH_MAX:
            return f"a label has {len(name)} characters; at most {LABEL_LENGTH_MAX} are allowed"
    if isinstance(sent, ClientGauge):
        return "" if 0 <= sent.value <= COUNT_MAX else f"{series.metric} is {sent.value}; it must be 0 or more"
    limits = LIMITS_MS[series.metric]
    if tuple(sent.limits) != limits or len(sent.counts) != len(limits) + 1:
        return f"{series.metric} has other limits than {', '.join(f'{each:g}' for each in limits)}"
    if not _are_counts(sent.counts) or not (math.isfinite(sent.total) and 0 <= sent.total <= COUNT_MAX):
        return f"{series.metric} has values that are too large, or below 0"
    return ""


def _are_counts(counts: Iterable[int]) -> bool:
    return all(0 <= each <= COUNT_MAX for each in counts)
