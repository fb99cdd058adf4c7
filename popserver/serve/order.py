"""Messages between a supervisor and its workers: lines of JSON on the worker's standard input and output.

The first line to a worker is its `Order`. Later `ASK` follows again and again, and `LEAVE` may; the end of the input
means that the supervisor is gone. The worker answers the order with a `Report`, and `ASK` with the same word.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self, TypeVar

from popserver.front.sockets import GivenSockets
from popserver.serve.settings import OK

T = TypeVar("T")

# Of the same length, so that a worker reads one word at a time.
LEAVE = b"leave\n"  # accept no more connections: a successor does
ASK = b"alive\n"  # answer from the event loop


@dataclass(frozen=True)
class Order:
    """What a worker needs to start: settings that count before environment and file, and the sockets by number."""

    worker: int
    settings: Mapping[str, Any]
    sockets: Mapping[str, list[int]]  # the fields of `GivenSockets`
    # Whether it may upgrade the schema: never while other workers run, whose code knows the old one.
    upgrades: bool = False

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Self:
        """Raises `ValueError`."""
        return _read(cls, line)

    def take_sockets(self) -> GivenSockets:
        """The sockets, which this process has inherited."""
        return GivenSockets(
            **{name: [socket.socket(fileno=each) for each in numbers] for name, numbers in self.sockets.items()}
        )


@dataclass(frozen=True)
class Report:
    """A worker is ready, with the facts of its ready line; or it ends, with a sentence why."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    drain_s: float = 0.0  # how long it takes to stop, at most
    handover_s: float = 0.0  # how long it hands its clients over before that, if it has to
    refusal: str = ""
    exit_code: int = OK

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Self:
        """Raises `ValueError`."""
        return _read(cls, line)


def _read(kind: type[T], line: bytes) -> T:
    """Fields that this version does not know are left out: the other side may be a newer one."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind).validate_json(line)
