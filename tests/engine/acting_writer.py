"""A writer on a database of its own, and requests that do what a test says in its transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import ClassVar

from popserver.database.database import Database
from popserver.engine.clock import ManualClock
from popserver.engine.transaction import (
    ANSWER_BYTES_MAX,
    Locks,
    Phase,
    Request,
    Transaction,
    carries_out_each,
)
from popserver.engine.writer import Writer
from popserver.model.budget import Budget

PATIENCE_S = 5.0  # for what waits at the end of a test, on a busy machine

Act = Callable[[Transaction], object]


@dataclass(frozen=True)
class Change(Request[object]):
    """A request that names what it changes: its answer confirms something."""

    phase: ClassVar = Phase.APPEND
    act: Act


@dataclass(frozen=True)
class Look(Request[object]):
    """A request that searches for work."""

    phase: ClassVar = Phase.READ
    act: Act


@dataclass(frozen=True)
class Remove(Request[object]):
    """A request before whose operation the transaction writes its dead letters and retries."""

    phase: ClassVar = Phase.RETAIN
    act: Act


@dataclass(frozen=True)
class Locking(Request[object]):
    """A request that names locks."""

    phase: ClassVar = Phase.APPEND
    named: tuple[Locks, ...]
    act: Act

    def locks(self) -> Iterable[Locks]:
        return self.named


@carries_out_each(Change)
def change(tx: Transaction, request: Change) -> object:
    return request.act(tx)


@carries_out_each(Locking)
def change_under_locks(tx: Transaction, request: Locking) -> object:
    return request.act(tx)


@carries_out_each(Look)
def look(tx: Transaction, request: Look) -> object:
    return request.act(tx)


@carries_out_each(Remove)
def remove(tx: Transaction, request: Remove) -> object:
    return request.act(tx)


@asynccontextmanager
async def acting_writer(
    url: str, backlog_bytes: int = 1_000, capacity: int = ANSWER_BYTES_MAX
) -> AsyncIterator[Writer]:
    """A writer that runs as long as the context."""
    database = Database(url, durability="relaxed")
    budget = Budget("send backlog", backlog_bytes, "bytes", "send_backlog_bytes")
    writer = Writer(database, ManualClock(), budget, lambda: capacity)
    writer.start()
    try:
        yield writer
    finally:
        async with asyncio.timeout(PATIENCE_S):
            await writer.idle()
        await writer.close()
        database.close()
