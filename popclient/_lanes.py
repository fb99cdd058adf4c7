"""Calls that travel together.

One gRPC call costs about as much as the work of ten messages, whatever it carries. So while one request of a lane is
on its way, the next one fills. There is no timer: an idle lane lets its call go at the end of the present turn of the
event loop, together with whatever else was submitted in that turn. A full request does not wait for the one before it,
unless the lane keeps order.

A lane runs in one event loop. Each call carries a `Reply`; an asyncio.Future is one, and so is a thread's `Waiter`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from popclient.errors import ClientClosed, PopError, for_caller

Item = TypeVar("Item")


class Reply(Protocol):
    """Takes the outcome of one call; `done()` once nobody waits for it any more."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...


class Call(NamedTuple, Generic[Item]):
    """One thing to carry, its weight in bytes, and who waits for the outcome."""

    item: Item
    size: int
    reply: Reply


class Limits(NamedTuple):
    """How much one request carries, and how many requests may be on their way at once."""

    calls: int
    size: int
    in_flight: int


Carry = Callable[[Sequence[Call[Item]]], Awaitable[None]]


class Lane(Generic[Item]):
    """Carries calls to one destination.

    carry: sends one request and gives every call its outcome, a result or a PopError.
    limits: asked anew before each request.
    """

    def __init__(self, carry: Carry[Item], limits: Callable[[], Limits]) -> None:
        self._carry = carry
        self._limits = limits
        self._waiting: deque[Call[Item]] = deque()
        self._in_flight: dict[asyncio.Task[None], list[Call[Item]]] = {}
        self._leaving = False

    def submit(self, call: Call[Item]) -> None:
        """Lets the call travel with the next request; its reply gets the outcome."""
        self._waiting.append(call)
        if not self._leaving:
            self._leaving = True
            asyncio.get_running_loop().call_soon(self._leave)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._in_flight

    async def flush(self) -> None:
        """Returns when everything submitted so far has its outcome."""
        while not self.idle:
            self._leave()
            if self._in_flight:
                await asyncio.wait(self._in_flight, return_when=asyncio.FIRST_COMPLETED)

    def abandon(self) -> None:
        """Ends what is on its way and refuses what waits."""
        for task in self._in_flight:
            task.cancel()
        waiting, self._waiting = self._waiting, deque()
        settle(list(waiting), [ClientClosed() for _ in waiting])

    def _leave(self) -> None:
        self._leaving = False
        while self._waiting and self._may_leave(limits := self._limits()):
            if batch := self._next_batch(limits):
                task = asyncio.get_running_loop().create_task(self._travel(batch))
                self._in_flight[task] = batch
                task.add_done_callback(self._arrived)

    def _may_leave(self, limits: Limits) -> bool:
        if not self._in_flight:
            return True
        return len(self._in_flight) < limits.in_flight and len(self._waiting) >= limits.calls

    def _next_batch(self, limits: Limits) -> list[Call[Item]]:
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

    async def _travel(self, batch: list[Call[Item]]) -> None:
        try:
            await self._carry(batch)
        except Exception as defect:  # noqa: BLE001  a task's outermost line: a defect must not leave callers waiting
            settle(batch, [for_caller(defect) for _ in batch])

    def _arrived(self, task: asyncio.Task[None]) -> None:
        batch = self._in_flight.pop(task)
        if task.cancelled():
            settle(batch, [ClientClosed() for _ in batch])
        if self._waiting and not self._leaving:
            # At the end of the turn: those whose results came with this request may have something new to send.
            self._leaving = True
            asyncio.get_running_loop().call_soon(self._leave)


def settle(batch: Sequence[Call[Any]], outcomes: Sequence[Any]) -> None:
    """Gives each call its outcome, unless its caller has given up."""
    for call, outcome in zip(batch, outcomes, strict=True):
        if not call.reply.done():
            call.reply.set_result(outcome)


class Lanes(Generic[Item]):
    """Lanes by destination; an idle one is forgotten when a new one is made."""

    def __init__(self, new: Callable[[Any], Lane[Item]]) -> None:
        self._new = new
        self._lanes: dict[Hashable, Lane[Item]] = {}

    def submit(self, destination: Hashable, call: Call[Item]) -> None:
        lane = self._lanes.get(destination)
        if lane is None:
            self._forget_idle()
            lane = self._lanes[destination] = self._new(destination)
        lane.submit(call)

    def _forget_idle(self) -> None:
        if len(self._lanes) >= 64:
            self._lanes = {key: lane for key, lane in self._lanes.items() if not lane.idle}

    async def flush(self) -> None:
        for lane in list(self._lanes.values()):
            await lane.flush()

    def abandon(self) -> None:
        for lane in self._lanes.values():
            lane.abandon()


class Joint:
    """The replies of several calls of one caller; its own reply gets the list of outcomes when all are there."""

    def __init__(self, count: int, reply: Reply) -> None:
        self._reply = reply
        self._missing = count
        self._outcomes: list[Any] = [None] * count
        if not count:
            reply.set_result([])

    def part(self, index: int) -> Reply:
        return _Part(self, index)

    def done(self) -> bool:
        return self._reply.done()

    def take(self, index: int, outcome: Any) -> None:
        self._outcomes[index] = outcome
        self._missing -= 1
        if not self._missing and not self._reply.done():
            self._reply.set_result(self._outcomes)


class _Part:
    __slots__ = ("_index", "_joint", "_settled")

    def __init__(self, joint: Joint, index: int) -> None:
        self._joint = joint
        self._index = index
        self._settled = False

    def done(self) -> bool:
        return self._settled or self._joint.done()

    def set_result(self, result: Any, /) -> None:
        self._settled = True
        self._joint.take(self._index, result)


def unwrap(outcome: Any) -> Any:
    """The result, or raises the PopError it is."""
    if isinstance(outcome, PopError):
        raise outcome
    return outcome
