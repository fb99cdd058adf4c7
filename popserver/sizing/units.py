"""What one of each costs, as the benchmark has measured it: `make bench ARGS=sizes` writes figures.json."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).with_name("figures.json")


@dataclass(frozen=True, slots=True)
class PerRequest:
    """CPU time of a message in µs, in requests with one and with 32 messages."""

    one: float
    many: float

    def at(self, count: int) -> float:
        """For requests of so many: a request costs something, and so does each message in it."""
        request = max(0.0, (self.one - self.many) / (1 - 1 / 32))
        return self.many + request * (1 / count - 1 / 32)


@dataclass(frozen=True, slots=True)
class Units:
    """Of one kind of database. Times are µs of CPU time; `…_database` is that of Postgres' processes."""

    message_bytes: Mapping[int, float]  # by the bytes of the body
    held_bytes: float
    ordered_bytes: float
    dead_letter_bytes: float
    send: PerRequest
    send_database: PerRequest
    receive: PerRequest  # and its ack
    receive_database: PerRequest
    ordered: float  # how much more a receive in order costs, with few or with many message groups
    ordered_database: float
    server_bytes: float
    group_bytes: float
    group_us: float  # in a second
    poll_bytes: float
    poll_us: float  # in a second
    removal_us: float

    def bytes_of(self, body: float) -> float:
        """Bytes on the disk of a message with such a body: on the line between the measured ones."""
        sizes = sorted(self.message_bytes)
        above = min(max(bisect_left(sizes, body), 1), len(sizes) - 1)
        left, right = sizes[above - 1], sizes[above]
        slope = (self.message_bytes[right] - self.message_bytes[left]) / (right - left)
        return max(self.message_bytes[sizes[0]] - sizes[0], self.message_bytes[left] + slope * (body - left))


@dataclass(frozen=True, slots=True)
class Measured:
    """All figures. `reached` is how much of each was measured; what is more is computed from less."""

    machine: str
    at: str
    reached: Mapping[str, float]
    of: Mapping[str, Units]


def measured() -> Measured:
    """Read the figures of this package."""
    document = json.loads(FIGURES.read_text())
    return Measured(
        document["machine"],
        document["at"],
        document["reached"],
        {name: _units(figures) for name, figures in document["databases"].items()},
    )


def _units(figures: Mapping[str, Any]) -> Units:
    bodies = {
        int(name.removeprefix("message_bytes_")): value
        for name, value in figures.items()
        if name.startswith("message_bytes_")
    }

    def per_request(verb: str, kind: str) -> PerRequest:
        return PerRequest(figures[f"{verb}_1_{kind}"], figures[f"{verb}_32_{kind}"])

    def ordered(kind: str) -> float:
        plain = figures[f"receive_32_{kind}"]
        dearest = max(figures[f"receive_ordered_{kind}"], figures[f"receive_ordered_many_{kind}"])
        return max(1.0, dearest / plain) if plain else 1.0

    return Units(
        bodies,
        figures["held_bytes"],
        figures["ordered_bytes"],
        figures["dead_letter_bytes"],
        per_request("send", "us"),
        per_request("send", "database_us"),
        per_request("receive", "us"),
        per_request("receive", "database_us"),
        ordered("us"),
        ordered("database_us"),
        *(figures[name] for name in ("server_bytes", "group_bytes", "group_us", "poll_bytes", "poll_us", "removal_us")),
    )
