"""Calls that share a request.

One gRPC call of any size costs about as much as the work of ten messages. So while a queue waits for the answer to a
request, the next request fills. There is no timer: an idle queue sends all messages of a turn of the event loop at the
end of that turn. A full request does not wait for the one before it, unless the queue keeps order.

A queue runs in one event loop. Each call has a `Reply`: an asyncio.Future is one, and so is a thread's `Waiter`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from popclient._session import convert
from popclient._session.session import Session
from popclient._tasks import Tasks, begin_task
from popclient.errors import (
    BadRequest,
    ClientClosed,
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

Item = TypeVar("Item")

# With these a server may refuse a whole request because of one item, or because it takes one item at a time.
BECAUSE_OF_ONE: Final = (
    BadRequest,
    MultipleResults,
    PayloadTooLarge,
    PreconditionFailed,
    PropertiesTooLarge,
    QuotaExceeded,
    UnsupportedByServer,
)


class Reply(Protocol):
    """Takes the outcome of one call; `done()` when its caller has given up."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...


class Call(NamedTuple, Generic[Item]):
    """One item to send, its size in bytes, and the reply that gets the outcome."""

    item: Item
    size: int
    reply: Reply


class BatchLimits(NamedTuple):
    """How many calls and bytes one request holds, and how many requests may be on their way at once."""

    calls: int
    size: int
    in_flight: int


SendBatch = Callable[[Sequence[Call[Item]]], Awaitable[None]]
Exchange = Callable[[Sequence[Item]], Awaitable[Sequence[Any]]]


class BatchQueue(Generic[Item]):
    """Sends the calls for one destination.

    send: sends one request and gives every call its outcome, a result or a PopError.
    limits: called before each request.
    """

    def __init__(self, send: SendBatch[Item], limits: Callable[[], BatchLimits]) -> None:
        self._send_batch = send
        self._limits = limits
        self._waiting: deque[Call[Item]] = deque()
        self._in_flight: dict[asyncio.Task[None], list[Call[Item]]] = {}
        self._scheduled = False

    def submit(self, call: Call[Item]) -> None:
        """Sends the call with the next request; its reply gets the outcome."""
        self._waiting.append(call)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._send_waiting)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._in_flight

    async def flush(self) -> None:
        """Returns when everything submitted so far has its outcome."""
        while not self.idle:
            self._send_waiting()
            if self._in_flight:
                await asyncio.wait(self._in_flight, return_when=asyncio.FIRST_COMPLETED)

    def abandon(self) -> None:
        """Cancels the requests on their way and refuses the calls that wait."""
        for task in self._in_flight:
            task.cancel()
        waiting, self._waiting = self._waiting, deque()
        settle(list(waiting), [ClientClosed() for _ in waiting])

    def _send_waiting(self) -> None:
        self._scheduled = False
        while self._waiting and self._may_send(limits := self._limits()):
            if batch := self._next_batch(limits):
                task = begin_task(self._send(batch))
                self._in_flight[task] = batch
                task.add_done_callback(self._ended)

    def _may_send(self, limits: BatchLimits) -> bool:
        if not self._in_flight:
            return True
        return len(self._in_flight) < limits.in_flight and len(self._waiting) >= limits.calls

    def _next_batch(self, limits: BatchLimits) -> list[Call[Item]]:
        waiting, size = self._waiting, 0
        batch: list[Call[Item]] = []
        while waiting and len(batch) < limits.calls:
            if waiting[0].reply.done():  # its caller has given up
                waiting.popleft()
                continue
            size += waiting[0].size
            if batch and size > limits.size:
                break
            batch.append(waiting.popleft())
        return batch

    async def _send(self, batch: list[Call[Item]]) -> None:
        try:
            await self._send_batch(batch)
        except Exception as defect:  # noqa: BLE001  a task's outermost line: a defect must not leave callers waiting
            settle(batch, [for_caller(defect) for _ in batch])

    def _ended(self, task: asyncio.Task[None]) -> None:
        batch = self._in_flight.pop(task)
        if task.cancelled():
            settle(batch, [ClientClosed() for _ in batch])
        if self._waiting and not self._scheduled:
            # At the end of the turn: callers that have just got their results may submit more.
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._send_waiting)


def settle(batch: Sequence[Call[Any]], outcomes: Sequence[Any]) -> None:
    """Gives each call its outcome, unless its caller has given up."""
    for call, outcome in zip(batch, outcomes, strict=True):
        if not call.reply.done():
            call.reply.set_result(outcome)


class Batcher(Generic[Item]):
    """A queue for each destination; idle ones are dropped when many new ones come."""

    def __init__(self, new: Callable[[Any], BatchQueue[Item]]) -> None:
        self._new = new
        self._queues: dict[Hashable, BatchQueue[Item]] = {}

    def submit(self, destination: Hashable, call: Call[Item]) -> None:
        queue = self._queues.get(destination)
        if queue is None:
            self._drop_idle()
            queue = self._queues[destination] = self._new(destination)
        queue.submit(call)

    def _drop_idle(self) -> None:
        if len(self._queues) >= 64:
            self._queues = {key: queue for key, queue in self._queues.items() if not queue.idle}

    async def flush(self) -> None:
        for queue in list(self._queues.values()):
            await queue.flush()

    def abandon(self) -> None:
        for queue in self._queues.values():
            queue.abandon()


class BatchSender(Generic[Item]):
    """Sends the batches of queues, and single calls again that failed in passing.

    exchange: sends one request; returns an outcome per item, in order, or raises the PopError with which the server
        refused the whole request.
    """

    def __init__(self, session: Session, exchange: Exchange[Item]) -> None:
        self._session = session
        self._exchange = exchange
        self._retries = Tasks()

    async def send(self, batch: Sequence[Call[Item]]) -> None:
        """Retries single calls beside the queue: the others need not wait for them."""
        if again := await self._attempt(batch, 1):
            self._retries.spawn(self._retry(again), lambda failure: settle(again, [for_caller(failure) for _ in again]))

    async def send_in_order(self, batch: Sequence[Call[Item]]) -> None:
        """Retries before the queue goes on: no call overtakes another one."""
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
        """Tries the calls once. Returns those to try again; the others have their outcome."""
        outcomes = await self._outcomes(batch)
        again = attempt < self._session.config.max_attempts
        left = [again and self._may_retry(outcome) for outcome in outcomes]
        done = [(call, outcome) for call, outcome, retry in zip(batch, outcomes, left, strict=True) if not retry]
        settle([call for call, _ in done], [outcome for _, outcome in done])
        return [call for call, retry in zip(batch, left, strict=True) if retry]

    def _may_retry(self, outcome: Any) -> bool:
        if not isinstance(outcome, PopError) or not outcome.retryable:
            return False
        # If no server has ever answered, the whole deadline was spent on trying.
        return self._session.transport.reached or not isinstance(outcome, Unreachable)

    async def _outcomes(self, batch: Sequence[Call[Item]]) -> Sequence[Any]:
        try:
            return await self._exchange([call.item for call in batch])
        except BECAUSE_OF_ONE as refusal:
            if len(batch) == 1:
                return [refusal]
            # Each alone gets its own outcome.
            return [(await self._outcomes([call]))[0] for call in batch]
        except PopError as failure:
            return [for_caller(failure) for _ in batch]


class CombinedReply:
    """Collects the outcomes of one caller's calls; the caller's reply gets their list when all are there."""

    def __init__(self, count: int, reply: Reply) -> None:
        self._reply = reply
        self._missing = count
        self._outcomes: list[Any] = [None] * count
        if not count:
            reply.set_result([])

    def part(self, index: int) -> Reply:
        return _ReplyPart(self, index)

    def done(self) -> bool:
        return self._reply.done()

    def take(self, index: int, outcome: Any) -> None:
        self._outcomes[index] = outcome
        self._missing -= 1
        if not self._missing and not self._reply.done():
            self._reply.set_result(self._outcomes)


class _ReplyPart:
    __slots__ = ("_combined", "_index", "_settled")

    def __init__(self, combined: CombinedReply, index: int) -> None:
        self._combined = combined
        self._index = index
        self._settled = False

    def done(self) -> bool:
        return self._settled or self._combined.done()

    def set_result(self, result: Any, /) -> None:
        self._settled = True
        self._combined.take(self._index, result)


def unwrap(outcome: Any) -> Any:
    """The result, or raises the PopError it is."""
    if isinstance(outcome, PopError):
        raise outcome
    return outcome
