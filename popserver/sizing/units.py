"""The cost of each unit of a load, measured by the benchmark: `make bench ARGS=sizes` writes figures.json."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).with_name("figures.json")
BODY_BYTES, LARGE_BODY_BYTES = 1_024, 16_384  # of the messages whose CPU time is measured


@dataclass(frozen=True, slots=True)
class PerRequest:
    """CPU time of a message in µs, in requests with one and with 32 messages.

    With many callers, whose requests share transactions; `light`: one in a request, of one caller. `large`: 32 in a
    request, with large bodies.
    """

    one: float
    many: float
    light: float
    large: float

    def at(self, count: int, body: float = BODY_BYTES) -> float:
        """For requests of so many: a request costs something, and so does each message in it, and each byte."""
        request = max(0.0, (self.one - self.many) / (1 - 1 / 32))
        a_byte = max(0.0, (self.large - self.many) / (LARGE_BODY_BYTES - BODY_BYTES))
        return self.many + request * (1 / count - 1 / 32) + a_byte * max(0.0, body - BODY_BYTES)

    def alone_at(self, count: int, body: float = BODY_BYTES) -> float:
        """The same if no request shares a transaction with another one."""
        return self.at(count, body) + max(0.0, self.light - self.one) / count


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
    removal: float  # of a message, by retention
    removal_database: float
    server_bytes: float
    group_bytes: float
    group: float  # in a second
    group_database: float
    poll_bytes: float
    poll: float  # in a second
    poll_database: float
    reached: Mapping[str, float]  # how much of each was measured; what is more is computed from less

    def bytes_of(self, body: float) -> float:
        """Bytes on the disk of a message with such a body: on the line between the measured ones."""
        sizes = sorted(self.message_bytes)
        above = min(max(bisect_left(sizes, body), 1), len(sizes) - 1)
        left, right = sizes[above - 1], sizes[above]
        slope = (self.message_bytes[right] - self.message_bytes[left]) / (right - left)
        return max(self.message_bytes[sizes[0]] - sizes[0], self.message_bytes[left] + slope * (body - left))


@dataclass(frozen=True, slots=True)
class Measured:
    """All figures."""

    machine: str
    at: str
    of: Mapping[str, Units]


def measured() -> Measured:
    """Read the figures of this package."""
    document = json.loads(FIGURES.read_text())
    return Measured(
        document["machine"],
        document["at"],
        {name: _units(figures) for name, figures in document["databases"].items()},
    )


def _units(figures: Mapping[str, Any]) -> Units:
    bodies = {
        int(name.removeprefix("message_bytes_")): value
        for name, value in figures.items()
        if name.startswith("message_bytes_")
    }

    def per_request(verb: str, kind: str) -> PerRequest:
        return PerRequest(*(figures[f"{verb}_{how}_{kind}"] for how in ("1", "32", "light", "large")))

    def ordered(kind: str) -> float:
        plain = figures[f"receive_32_{kind}"]
        dearest = max(figures[f"receive_ordered_{kind}"], figures[f"receive_ordered_many_{kind}"])
        return max(1.0, dearest / plain) if plain else 1.0

    return Units(
        message_bytes=bodies,
        held_bytes=figures["held_bytes"],
        ordered_bytes=figures["ordered_bytes"],
        dead_letter_bytes=figures["dead_letter_bytes"],
        send=per_request("send", "us"),
        send_database=per_request("send", "database_us"),
        receive=per_request("receive", "us"),
        receive_database=per_request("receive", "database_us"),
        ordered=ordered("us"),
        ordered_database=ordered("database_us"),
        removal=figures["removal_server_us"],
        removal_database=figures["removal_database_us"],
        server_bytes=figures["server_bytes"],
        group_bytes=figures["group_bytes"],
        group=figures["group_us"],
        group_database=figures["group_database_us"],
        poll_bytes=figures["poll_bytes"],
        poll=figures["poll_us"],
        poll_database=figures["poll_database_us"],
        reached=figures["reached"],
    )
