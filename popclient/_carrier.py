"""What happens to a request full of calls: each its own outcome, a second chance for those that deserve one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic

from popclient import _convert as convert
from popclient._lanes import Call, Item, settle
from popclient._session import Session
from popclient._tasks import Tasks
from popclient.errors import (
    BadRequest,
    MultipleResults,
    PayloadTooLarge,
    PopError,
    PreconditionFailed,
    PropertiesTooLarge,
    QuotaExceeded,
    Unreachable,
    UnsupportedByServer,
    for_caller,
)

# What a server may refuse a whole request with because of one of its items, or because it takes one at a time.
BECAUSE_OF_ONE: Final = (
    BadRequest,
    MultipleResults,
    PayloadTooLarge,
    PreconditionFailed,
    PropertiesTooLarge,
    QuotaExceeded,
    UnsupportedByServer,
)

Exchange = Callable[[Sequence[Item]], Awaitable[Sequence[Any]]]


class Carrier(Generic[Item]):
    """Carries batches for lanes.

    exchange: sends one request; returns an outcome per item, in order, or raises the PopError with which the server
        refused the whole request.
    """

    def __init__(self, session: Session, exchange: Exchange[Item]) -> None:
        self._session = session
        self._exchange = exchange
        self._retries = Tasks()

    async def carry(self, batch: Sequence[Call[Item]]) -> None:
        """The retries of single calls run beside the lane: the others need not wait for them."""
        if again := await self._attempt(batch, 1):
            self._retries.spawn(self._retry(again), lambda failure: settle(again, [for_caller(failure) for _ in again]))

    async def carry_in_order(self, batch: Sequence[Call[Item]]) -> None:
        """Nothing may overtake what is being retried."""
        if again := await self._attempt(batch, 1):
            await self._retry(again)

    async def flush(self) -> None:
        await self._retries.ended()

    def abandon(self) -> None:
        self._retries.cancel()

    async def _retry(self, calls: Sequence[Call[Item]]) -> None:
        for attempt in range(2, self._session.config.max_attempts + 1):
            await asyncio.sleep(convert.send_backoff(self._session.settings, attempt - 1))
            calls = await self._attempt(calls, attempt)
            if not calls:
                return

    async def _attempt(self, batch: Sequence[Call[Item]], attempt: int) -> Sequence[Call[Item]]:
        """Tries the calls once; returns those that deserve another attempt, the others have their outcome."""
        outcomes = await self._outcomes(batch)
        again = attempt < self._session.config.max_attempts
        left = [again and self._deserves_another(outcome) for outcome in outcomes]
        done = [(call, outcome) for call, outcome, retry in zip(batch, outcomes, left, strict=True) if not retry]
        settle([call for call, _ in done], [outcome for _, outcome in done])
        return [call for call, retry in zip(batch, left, strict=True) if retry]

    def _deserves_another(self, outcome: Any) -> bool:
        if not isinstance(outcome, PopError) or not outcome.retryable:
            return False
        # Where no server ever answered, the whole deadline has been spent on trying already.
        return self._session.transport.reached or not isinstance(outcome, Unreachable)

    async def _outcomes(self, batch: Sequence[Call[Item]]) -> Sequence[Any]:
        try:
            return await self._exchange([call.item for call in batch])
        except BECAUSE_OF_ONE as refusal:
            if len(batch) == 1:
                return [refusal]
            # Alone each gets its due.
            return [(await self._outcomes([call]))[0] for call in batch]
        except PopError as failure:
            return [for_caller(failure) for _ in batch]
