"""Makes families of Prometheus from the numbers of a server. Pure: it is given all numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from popserver.engine.meters import Histogram
from popserver.metrics.names import BY_NAME, COMMON, METRICS, Kind

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class Identity(NamedTuple):
    """The values of the common labels; `node_id` is the address of the server."""

    cluster: str
    node_type: str
    node_id: str


class Families:
    """Samples, collected by the metric they belong to. Beyond `series_max` samples none is taken any more."""

    def __init__(self, identity: Identity, series_max: int, *, has_units: bool = False) -> None:
        """`has_units`: the names end with the units."""
        self._has_units = has_units
        self._common = list(identity)
        self.series_max = series_max
        self.capacity = series_max  # how many samples more may be added
        self._found: dict[str, Family] = {}

    def has_capacity(self, series: int) -> bool:
        """Whether so many samples more may be added."""
        return self.capacity >= series

    def add(self, name: str, value: float, *labels: str) -> None:
        """Add a sample. Raises `KeyError` for a metric that is not in the table."""
        self.capacity -= 1
        self._family(name).add_metric([*self._common, *labels], value)  # type: ignore[call-arg, arg-type]

    def add_histogram(self, name: str, histogram: Histogram, *labels: str) -> None:
        """Add a histogram, which is a sample for each limit and three more."""
        self.capacity -= len(histogram.counts) + 2
        limits = [*map(_limit, histogram.limits), "+Inf"]
        buckets = list(zip(limits, accumulate(histogram.counts), strict=True))
        family = self._family(name)
        assert isinstance(family, HistogramMetricFamily)
        family.add_metric([*self._common, *labels], buckets, histogram.total)

    def all(self) -> Iterable[Metric]:
        """The families with samples, in the order of the table."""
        return [self._found[each.name] for each in METRICS if each.name in self._found]

    def _family(self, name: str) -> Family:
        family = self._found.get(name)
        if family is None:
            metric = BY_NAME[name]
            shown = metric.name_with_unit if self._has_units else name
            family = self._found[name] = _KINDS[metric.kind](shown, metric.help, labels=[*COMMON, *metric.labels])
        return family


_KINDS: Mapping[Kind, type[Family]] = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}


def _limit(limit: float) -> str:
    return repr(float(limit)) if math.isfinite(limit) else "+Inf"


def merged(histograms: Sequence[Histogram]) -> Histogram:
    """One histogram of the values of all; they have the same limits."""
    whole = Histogram(histograms[0].limits)
    whole.counts = [sum(each) for each in zip(*(histogram.counts for histogram in histograms), strict=True)]
    whole.total = sum(histogram.total for histogram in histograms)
    return whole


def is_true(value: bool) -> str:
    """A label's value for a condition, as RocketMQ writes it."""
    return "true" if value else "false"
