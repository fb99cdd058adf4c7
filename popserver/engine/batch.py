"""A batch of the writer: the requests that run in one transaction, their outcomes, and when it starts.

A commit costs a disk flush and several thread switches, for one request as for many. Callers that were answered
together usually call again together. So after a batch of several requests the next batch waits for as long as the event
loop needs to receive that many requests again. After a batch of one request the next batch starts at once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from popserver.database.notifications import Invalidation
from popserver.engine.transaction import Request
from popserver.model.errors import PopError

# The loop needs about 0.1 ms to receive and answer a call. Twice that, so that a batch can grow to all active callers.
PER_REQUEST_S = 0.000_2
DELAY_S_MAX = 0.004
# The event loop needs as long for so many frames of streamed answers as for a call.
FRAMES_PER_CALL = 8
# A batch of this many requests does not wait for more: its commit costs little compared with the requests.
ENOUGH = 48


class BatchEntry(NamedTuple):
    """A waiting request. Its future gets what the operation returns for it."""

    request: Request[object]
    size: int
    answers: int
    frames: int
    answer: asyncio.Future[Any]


class BatchOutcome(NamedTuple):
    """What the operation returned for a request, or its refusal."""

    entry: BatchEntry
    result: object


@dataclass(slots=True)
class BatchResult:
    """The outcomes and effects of a batch, from all its transactions."""

    outcomes: list[BatchOutcome] = field(default_factory=list)
    ready_topics: set[int] = field(default_factory=set)
    ready_lite: dict[int, set[str]] = field(default_factory=dict)
    invalidations: set[Invalidation] = field(default_factory=set)
    due: dict[str, int] = field(default_factory=dict)

    def fail(self, batch: Sequence[BatchEntry], error: PopError) -> None:
        """Refuse all requests of the batch."""
        self.outcomes += [BatchOutcome(entry, error) for entry in batch]


class BatchDelay:
    """How long the next batch waits for requests, by the previous one. `now_s` is the time of a monotonic clock."""

    def __init__(self) -> None:
        self._starts_at_s = -math.inf
        self.gathers = False  # whether the previous batch had several requests; if not, the next one starts at once

    def wait_s(self, waiting: int, now_s: float) -> float:
        """How many seconds a batch of `waiting` requests should wait for more; 0 to start at once."""
        return 0.0 if waiting >= ENOUGH else max(0.0, self._starts_at_s - now_s)

    def started(self, count: int, now_s: float, *, frames: int = 0) -> None:
        """A batch of `count` requests started; its streamed answers have up to `frames` frames."""
        self.gathers = count > 1
        calls = count + frames / FRAMES_PER_CALL
        delay_s = min(calls * PER_REQUEST_S, DELAY_S_MAX) if self.gathers else 0.0
        self._starts_at_s = now_s + delay_s
