"""What clients measure, added up over all clients: one histogram for each topic and group, whatever their number.

Clients send OpenTelemetry's points. What a point of a histogram adds is decided by the times in it, which are those of
the client's clock and are compared with one another only. `started_ns` is when the client began to count, `measured_ns`
when it read its numbers:

- A point that is not newer than the last one of this client and series, or began earlier, adds nothing: it is sent
  again, or late.
- Values since the last point (delta temporality) are added.
- Totals (cumulative temporality) with the same start as the last ones add what they have grown by. If they have shrunk,
  they add nothing, and the next ones are compared with them.
- Totals with a later start than the last ones are those of a client that began anew: all are added.
- Totals of a client or series that the server does not know are added if the client began to count at most `FRESH_MS`
  before, and while this server ran: then they are the first that it sends. Otherwise the server, before it forgot the
  client, or another server may have counted them already: only what they grow by from then on is added.

So what a client sends again to the server that counted it is not counted twice. Two things may be: the first totals, if
a client that has just begun sends them to a second server too, and values in delta temporality that it sends again to
another server or after `FORGET_MS`.

What is kept grows with the clients, and has a budget; what is exported does not, and has another one. A caller may use
half of each. It is a user or, if callers need not sign, an address.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from popserver.engine.clock import Clock
from popserver.engine.meters import Histogram
from popserver.metrics.families import Families
from popserver.metrics.server_numbers import Names
from popserver.model.budget import Budget, Shares
from popserver.model.names import Resource
from popserver.model.retry import MINUTE_MS, SECOND_MS

LABEL_LENGTH_MAX = 255
SERIES_SHARE = 10  # one of so many samples of a scrape may be of clients
SAMPLES_EACH = 10  # of a series: a histogram with its limits
FRESH_MS = 90 * SECOND_MS  # clients send each minute, so the first totals of one are not older
FORGET_MS = 10 * MINUTE_MS  # after the last time that a client sent a number
SILENT_MS = 60 * MINUTE_MS  # what no client has sent for so long is not exported any more
OLD_MS = 3 * MINUTE_MS  # what is cached is exported for so long after that
COUNT_MAX = 1 << 32  # values in a bucket of a point, and what a client has cached
EXACT_MAX = 1 << 53  # from there on the numbers of a scrape, which are floats, are not exact

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


class Unusable(StrEnum):
    """Why a point cannot be used. Points that exceed a budget are counted by the budget."""

    UNKNOWN = "unknown"  # its topic or its group does not exist
    FORBIDDEN = "forbidden"  # the caller has no right on its topic or its group
    WRONG = "wrong"  # its numbers cannot be


class ClientHistogram(NamedTuple):
    """A histogram of one client. With `is_total` it has all values since its start, else those since the last one."""

    client_id: str
    series: Series
    limits: Sequence[float]
    counts: Sequence[int]
    total: float
    started_ns: int
    measured_ns: int
    is_total: bool

    @property
    def age_ms(self) -> float:
        """For how long the client had counted."""
        return (self.measured_ns - self.started_ns) / 1e6


class ClientGauge(NamedTuple):
    """What a client has cached now."""

    client_id: str
    series: Series
    value: float


@dataclass(slots=True)
class _Last:
    """What a client sent last: totals of a histogram, or in `total` what it has cached."""

    counts: Sequence[int] = ()
    total: float = 0.0
    started_ns: int = 0
    measured_ns: int = 0
    seen_ms: int = 0


class _Exported:
    """A series of a scrape, and the caller in whose share it is. For what is cached the histogram stays empty."""

    __slots__ = ("histogram", "holder", "seen_ms")

    def __init__(self, series: Series, holder: str) -> None:
        self.histogram = Histogram(LIMITS_MS.get(series.metric, ()))
        self.holder = holder
        self.seen_ms = 0


class _Key(NamedTuple):
    """Whose numbers: a caller, one of its clients, and what they are of."""

    holder: str
    client_id: str
    series: Series


class ClientMeters:
    """The numbers of all clients. Used in the event loop, except for `add_to`."""

    def __init__(self, kept: Budget, exported: Budget, clock: Clock) -> None:
        """`kept`: what is kept of each client. `exported`: the series of all clients together."""
        self.left_out: Counter[Unusable] = Counter(dict.fromkeys(Unusable, 0))
        self._kept_shares = Shares(kept, max(1, kept.limit // 2))
        self._exported_shares = Shares(exported, max(1, exported.limit // 2))
        self._clock = clock
        self._started_ms = self._swept_ms = clock.now_ms()
        self._last: dict[_Key, _Last] = {}
        self._exported: dict[Series, _Exported] = {}

    def take(self, sent: ClientHistogram | ClientGauge, holder: str) -> str:
        """Add what a client of this caller sent. Returns why it is left out; empty if it is not."""
        if reason := _fault(sent):
            return self.leave_out(Unusable.WRONG, reason)
        key = _Key(holder, sent.client_id, sent.series)
        if refusal := self._reserve(key):
            return refusal
        last, exported, now_ms = self._last[key], self._exported[sent.series], self._clock.now_ms()
        if isinstance(sent, ClientGauge):
            last.total = sent.value
        else:
            is_known = last.seen_ms > 0
            if is_known and (sent.measured_ns <= last.measured_ns or sent.started_ns < last.started_ns):
                return ""
            counts, total = added(sent, last) if is_known else self._first(sent, now_ms)
            if reason := _overflow(sent.series, exported.histogram, counts, total):
                return self.leave_out(Unusable.WRONG, reason)
            exported.histogram.counts = [a + b for a, b in zip(exported.histogram.counts, counts, strict=True)]
            exported.histogram.total += total
            last.counts, last.total = tuple(sent.counts) if sent.is_total else (), sent.total
            last.started_ns, last.measured_ns = sent.started_ns, sent.measured_ns
        last.seen_ms = exported.seen_ms = now_ms
        return ""

    def leave_out(self, why: Unusable, reason: str) -> str:
        """Count a point that is left out. Returns the reason."""
        self.left_out[why] += 1
        return reason

    def sweep(self) -> Sequence[Series]:
        """Once a minute: forget series that no client sends any more. Returns the others; the caller must `forget`
        those of deleted topics and groups. Returns nothing at other times."""
        now_ms = self._clock.now_ms()
        if now_ms - self._swept_ms < MINUTE_MS:
            return ()
        self._swept_ms = now_ms
        for key in [key for key, last in self._last.items() if now_ms - last.seen_ms > FORGET_MS]:
            self._forget_last(key)
        self.forget({each for each, exported in self._exported.items() if now_ms - exported.seen_ms > SILENT_MS})
        return list(self._exported)

    def forget(self, gone: Set[Series]) -> None:
        """Forget series, with what each client sent of them."""
        for series in gone:
            if exported := self._exported.pop(series, None):
                self._exported_shares.give_back(exported.holder)
        for key in [key for key in self._last if key.series in gone]:
            self._forget_last(key)

    def add_to(self, families: Families, names: Names) -> int:
        """Add the samples of topics and groups that exist. Returns how many series are left out. Thread-safe."""
        topics, groups, left_out = {*names.topics.values()}, {*names.groups.values()}, 0
        cached, since_ms = self._cached(), self._clock.now_ms() - SILENT_MS
        for series, exported in list(self._exported.items()):
            if exported.seen_ms < since_ms:
                continue
            if series.topic not in topics or (series.metric in _WITH_GROUP and series.group not in groups):
                continue
            if not families.has_capacity(SAMPLES_EACH):
                left_out += 1
            elif series.metric not in CACHED:
                families.add_histogram(series.metric, exported.histogram, *_labels(series))
            elif series in cached:
                families.add(series.metric, cached[series], *_labels(series))
        return left_out

    def _reserve(self, key: _Key) -> str:
        """Reserve in both budgets what the numbers need. Returns the refusal; empty if they fit."""
        if key in self._last:
            return ""
        if not self._kept_shares.take(key.holder):
            return self._kept_shares.refusal("one more series", key.holder).sentence
        if key.series not in self._exported:
            if not self._exported_shares.take(key.holder):
                self._kept_shares.give_back(key.holder)
                return self._exported_shares.refusal("one more topic, group or status", key.holder).sentence
            self._exported[key.series] = _Exported(key.series, key.holder)
        self._last[key] = _Last()
        return ""

    def _first(self, sent: ClientHistogram, now_ms: int) -> tuple[Sequence[int], float]:
        """What the first point of a client and a series adds."""
        is_first = sent.age_ms <= min(FRESH_MS, now_ms - self._started_ms)
        return (sent.counts, sent.total) if is_first or not sent.is_total else _nothing(sent)

    def _forget_last(self, key: _Key) -> None:
        del self._last[key]
        self._kept_shares.give_back(key.holder)

    def _cached(self) -> dict[Series, float]:
        now_ms, found = self._clock.now_ms(), dict[Series, float]()
        for key, last in list(self._last.items()):
            if key.series.metric in CACHED and now_ms - last.seen_ms <= OLD_MS:
                found[key.series] = found.get(key.series, 0.0) + last.total
        return found


def exported_max(series_max: int) -> int:
    """How many series of clients may be exported, if a scrape may have `series_max` samples."""
    return max(1, series_max // SERIES_SHARE // SAMPLES_EACH)


def added(sent: ClientHistogram, last: _Last) -> tuple[Sequence[int], float]:
    """What a point that is newer than the last one adds: its counts, and their sum."""
    if not sent.is_total or sent.started_ns > last.started_ns:
        return sent.counts, sent.total
    if last.counts:
        grown = [now - before for now, before in zip(sent.counts, last.counts, strict=True)]
        if min(grown) >= 0 and sent.total >= last.total:
            return grown, sent.total - last.total
    return _nothing(sent)


def _nothing(sent: ClientHistogram) -> tuple[Sequence[int], float]:
    return [0] * len(sent.counts), 0.0


def needs_group(series: Series) -> bool:
    """Whether the numbers are of a consumer group, too."""
    return series.metric in _WITH_GROUP


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
    name = sent.series.metric
    if len(sent.client_id) > LABEL_LENGTH_MAX:
        return f"a client id has {len(sent.client_id)} characters; at most {LABEL_LENGTH_MAX} are allowed"
    if isinstance(sent, ClientGauge):
        return "" if 0 <= sent.value <= COUNT_MAX else f"{name} is {sent.value}; use 0 to {COUNT_MAX}"
    limits = LIMITS_MS[name]
    if tuple(sent.limits) != limits or len(sent.counts) != len(limits) + 1:
        return f"{name} has other limits than {', '.join(f'{each:g}' for each in limits)}"
    if max(sent.counts) > COUNT_MAX or min(sent.counts) < 0:
        return f"{name} has a count of {max(sent.counts)}; use 0 to {COUNT_MAX}"
    if not (math.isfinite(sent.total) and 0 <= sent.total <= EXACT_MAX):
        return f"{name} has the sum {sent.total}; use 0 to {EXACT_MAX}"
    if not 0 <= sent.started_ns <= sent.measured_ns > 0:
        return (
            f"{name} was measured at {sent.measured_ns} ns, and begun at {sent.started_ns} ns; send the times of both"
        )
    return ""


def _overflow(series: Series, have: Histogram, counts: Iterable[int], total: float) -> str:
    if have.count + sum(counts) < EXACT_MAX and have.total + total < EXACT_MAX:
        return ""
    return f"with these values {series.metric} of {series.topic} would reach {EXACT_MAX}, and not be exact any more"
