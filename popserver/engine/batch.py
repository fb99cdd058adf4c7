"""A batch of the writer: the requests that run in one transaction, and what came of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from popserver.database.notifications import Invalidation
from popserver.engine.transaction import Request
from popserver.model.errors import PopError


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
        """Refuse all of its requests."""
        self.outcomes += [BatchOutcome(entry, error) for entry in batch]
