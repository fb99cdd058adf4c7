"""The load that a server is planned for, and the limits of its values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from popserver.model.message import BODY_BYTES_MAX
from popserver.model.retry import HOUR_MS

BATCH_MAX = 32  # of the clients' requests
YEARS_10_MS = 10 * 365 * 24 * HOUR_MS
# A larger value is a typing error.
RATE_MAX, COUNT_MAX = 10_000_000, 10_000_000


class BadLoad(Exception):
    """A value of the load makes no sense; the sentence names it, its limits and the way out."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one database, at its peak. Durations are in ms."""

    rate: float  # messages sent in a second, at the peak
    average_rate: float | None = None  # over a day; None: the peak rate
    body: int = 1_024  # bytes; those of keys and properties count too
    groups: int = 1  # consumer groups, each of which gets the messages
    delivered: float = 100.0  # per cent of the messages that a group gets, of those sent; fewer with a filter
    dead: float = 0.0  # per cent of the deliveries that become dead letters
    hold_ms: int = 1_000  # from a delivery to its ack
    retention_ms: int = 72 * HOUR_MS
    message_groups: int = 0  # 0: the messages are in none
    idle_polls: int = 0  # receives that wait for a message
    per_send: int = 1  # messages in a send request
    per_receive: int = BATCH_MAX
    queues: int = 8  # of the topics, together
    postgres_cores: int = 8  # of the machine of Postgres

    @property
    def average(self) -> float:
        """Messages sent in a second, over a day."""
        return self.rate if self.average_rate is None else self.average_rate

    @property
    def deliveries(self) -> float:
        """In a second, to all groups, at the peak."""
        return self.rate * self._copies

    @property
    def average_deliveries(self) -> float:
        return self.average * self._copies

    @property
    def stored(self) -> float:
        """Messages stored at any time, without dead letters."""
        return self.average * self.retention_ms / 1_000

    @property
    def _copies(self) -> float:
        return self.groups * self.delivered / 100


class _Range:
    def __init__(self, least: float, most: float, advice: str) -> None:
        self.least = least
        self.most = most
        self.advice = advice


_RANGES = {
    "rate": _Range(0.001, RATE_MAX, "give messages per second, such as 500"),
    "average_rate": _Range(0.001, RATE_MAX, "give messages per second over a day"),
    "body": _Range(0, BODY_BYTES_MAX, "give bytes; of a larger body, send a reference"),
    "groups": _Range(0, COUNT_MAX, "give how many consumer groups get the messages"),
    "delivered": _Range(0, 100, "give per cent"),
    "dead": _Range(0, 100, "give per cent"),
    "hold_ms": _Range(0, YEARS_10_MS, "give a duration such as 30s"),
    "retention_ms": _Range(1, YEARS_10_MS, "give a duration such as 72h"),
    "message_groups": _Range(0, COUNT_MAX, "give how many message groups there are; 0: none"),
    "idle_polls": _Range(0, COUNT_MAX, "give how many receives wait at one time"),
    "per_send": _Range(1, BATCH_MAX, "a request of the clients has no more"),
    "per_receive": _Range(1, BATCH_MAX, "a receive of the clients asks for no more"),
    "queues": _Range(1, COUNT_MAX, "give the number of queues of all topics together"),
    "postgres_cores": _Range(1, 1_024, "give the processors of the machine of Postgres"),
}


def check(load: Load) -> None:
    """Raises BadLoad."""
    if load.retention_ms == 0:
        raise BadLoad("--retention 0s: such a server removes nothing; give how long to plan for, such as 365d")
    for field in dataclasses.fields(load):
        value, allowed = getattr(load, field.name), _RANGES[field.name]
        # A number that is none is in no range.
        if value is not None and not allowed.least <= value <= allowed.most:
            name, unit = field.name.removesuffix("_ms"), " ms" if field.name.endswith("_ms") else ""
            raise BadLoad(
                f"--{name.replace('_', '-')} {value:,.12g}{unit}: at least {allowed.least:g} and at most"
                f" {allowed.most:,.12g}{unit} are allowed; {allowed.advice}"
            )
    if load.average > load.rate:
        raise BadLoad(
            f"--average-rate {load.average:,.12g} is more than --rate {load.rate:,.12g}; give the peak as --rate"
        )
