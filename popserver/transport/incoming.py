"""The memory for requests: taken when the size of a request is known, given back when the request is answered.

The headers of a call are checked before its request. A request begins with its size. Up to 64 KiB may arrive at once;
the rest of a larger one may be sent only when there is memory for it. Large requests wait in turn, for a short time.
Small requests have their own budget, so that large ones cannot block them. Callers without a required signature have
their own budget too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Generic, NamedTuple, Never, Self, TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from popserver.engine.meters import Meters
from popserver.model.budget import Budget, Budgets
from popserver.model.errors import BadRequest, PopError, RequestTooSlow
from popserver.transport.call import Call
from popserver.transport.entry_limits import NO_LISTS, ListLimits, bytes_beside_bodies, has_more_fields
from popserver.transport.limits import MIB, CallLimits

# For a request without messages. A decoded list of empty entries needs fifty times its encoded size.
OTHER_REQUEST_BYTES_MAX = 4 * MIB
# A request with more fields is not decoded: its lists are too long in any case, and it would need fifty times its size.
FIELDS_MAX = 16_384
# The search for bodies stops after this many fields. In a legal request it has found all bodies by then.
FIELDS_TO_BODIES_MAX = 2 * FIELDS_MAX
# What a client may send before the server reads: a window of 64 KiB, less what stands before a request.
SMALL_BYTES = 64 * 1024 - 16

Request = TypeVar("Request", covariant=True)
Sent = TypeVar("Sent")
Decoded = TypeVar("Decoded", bound=Message)

# Decodes a request, or returns the refusal of bytes that are not a request.
Read = Callable[[bytes], Request | BadRequest]


class Arrived(NamedTuple, Generic[Request]):
    """A decoded request. Its `size` in bytes counts in `budget` until the caller gives it back."""

    request: Request | BadRequest | None  # a `BadRequest` if the bytes are not a request
    size: int
    budget: Budget
    refusal: PopError | None = None  # `request`, if it is one; or the request does not fit into its budget
    is_end: bool = False  # the call ended without a request


NOTHING: Arrived[Never] = Arrived(None, 0, Budget("nothing", 0, "bytes", ""))
# A large request waits for memory for at most this long, and not longer than half of what its deadline leaves.
TURN_MS = 1_000

END: Arrived[Never] = NOTHING._replace(refusal=BadRequest("the call ended without a request; send one"), is_end=True)


class Incoming:
    """The requests that arrive at one server, and the budgets for them."""

    def __init__(self, budgets: Budgets, limits: CallLimits, meters: Meters | None = None) -> None:
        """`meters` count the calls, and how long they take."""
        self.meters = meters or Meters()
        total = limits.incoming_bytes_max
        self._largest = limits.request_bytes_max
        self._request_s = (
            limits.request_ms / 1_000,
            limits.unsigned_request_ms / 1_000,
        )  # index: whether the caller is a stranger
        self._small = budgets.add("small requests", total // 4, "bytes", "max_incoming")
        self._large = _InTurn("large requests", total - total // 4, "bytes", "max_incoming")
        budgets.include(self._large)
        unsigned = max(total // 4, self._largest)
        self._unsigned = budgets.add("requests without a signature", unsigned, "bytes", "max_incoming")

    async def receive(self, call: Call, read: Read[Sent], bytes_max: int, *, is_anonymous: bool) -> Arrived[Sent]:
        """The next request of a call, decoded by `read`. The caller must give its size back to its budget.

        Raises `BadRequest` if it is larger than `bytes_max`, and `TooManyRequests` or `RequestTooSlow` if it does not
        arrive in time.
        """
        data = call.take()
        if data is None:
            return await self._late(call, read, bytes_max, is_anonymous=is_anonymous)
        size = len(data)
        budget = self._budget(size, is_anonymous=is_anonymous)
        if not budget.take(size):
            return Arrived(read(data), 0, budget, budget.refusal(f"a request of {size} bytes"))
        return _arrived(read(data), size, budget)

    def frames(self, call: Call, read: Read[Sent]) -> Frames[Sent]:
        """The frames of a stream of requests. A frame that arrives too slowly, or does not fit, ends the stream."""
        return Frames(self, call, read)

    async def _late(self, call: Call, read: Read[Sent], bytes_max: int, *, is_anonymous: bool) -> Arrived[Sent]:
        request_s = self._request_s[is_anonymous]
        try:
            async with asyncio.timeout(request_s):
                return await self._arrival(call, read, min(bytes_max, self._largest), is_anonymous=is_anonymous)
        except TimeoutError:
            raise RequestTooSlow(f"the request had not arrived after {request_s:g} s") from None

    async def _arrival(self, call: Call, read: Read[Sent], bytes_max: int, *, is_anonymous: bool) -> Arrived[Sent]:
        size = await call.next_size()
        if size is None:
            return END
        if size > bytes_max:
            raise BadRequest(f"a request of {size} bytes; this method accepts at most {bytes_max} bytes")
        budget = self._budget(size, is_anonymous=is_anonymous)
        if size <= SMALL_BYTES:
            # It counts when it is complete: a few bytes must not reserve more than they are.
            data = await call.next()
            if data is not None and not budget.take(size):
                raise budget.refusal(f"a request of {size} bytes")
        else:
            data = await self._large_request(call, budget, size)
        return END if data is None else _arrived(read(data), size, budget)

    async def _large_request(self, call: Call, budget: Budget, size: int) -> bytes | None:
        await self._take(budget, size, call)
        data: bytes | None = None
        try:
            call.grant()
            data = await call.next()
        finally:
            if data is None:
                budget.give_back(size)
        return data

    async def _take(self, budget: Budget, size: int, call: Call) -> None:
        if budget.take(size):
            return
        if budget is self._large:
            remaining_ms = call.remaining_ms()
            turn_ms = TURN_MS if remaining_ms is None else min(TURN_MS, remaining_ms // 2)
            if await self._large.wait(size, turn_ms / 1_000):
                return
        raise budget.refusal(f"a request of {size} bytes")

    def _budget(self, size: int, *, is_anonymous: bool) -> Budget:
        if is_anonymous:
            return self._unsigned
        return self._small if size <= SMALL_BYTES else self._large


class Frames(Generic[Request]):
    """The frames of one stream, decoded by `read`. A large frame uses its budget until the next one is asked for."""

    def __init__(self, incoming: Incoming, call: Call, read: Read[Request]) -> None:
        self.refusal: PopError | None = None
        self._incoming = incoming
        self._call = call
        self._read = read
        self._last: Arrived[Request] = NOTHING

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Request | BadRequest:
        self._give_back()
        await asyncio.sleep(0)  # other clients have their turn, even if this one has sent many frames
        # A stream may be silent for hours; but what a client has begun to send must arrive.
        if await self._call.next_size() is None:
            raise StopAsyncIteration
        try:
            self._last = await self._incoming.receive(
                self._call, self._read, OTHER_REQUEST_BYTES_MAX, is_anonymous=False
            )
        except PopError as refusal:
            self.refusal = refusal
            raise
        if self._last.is_end:
            raise StopAsyncIteration
        if self._last.request is None:
            self.refusal = self._last.refusal
        if self.refusal is not None:
            raise self.refusal
        return cast("Request | BadRequest", self._last.request)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._give_back()

    def _give_back(self) -> None:
        self._last.budget.give_back(self._last.size)
        self._last = NOTHING


class _InTurn(Budget):
    """A budget for which callers wait in turn."""

    def __init__(self, name: str, limit: int, unit: str, option: str) -> None:
        super().__init__(name, limit, unit, option)
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take(self, amount: int = 1) -> bool:
        """Use `amount` until `give_back`. Returns False if others wait, too."""
        return not self._waiting and super().take(amount)

    async def wait(self, amount: int, timeout_s: float) -> bool:
        """Use `amount` as soon as it fits and all earlier callers have had their turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (amount, turn)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(timeout_s):
                await turn
        except TimeoutError:
            pass
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.give_back(amount)
            raise
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self._next()
        return turn.done() and not turn.cancelled()

    def give_back(self, amount: int = 1) -> None:
        super().give_back(amount)
        self._next()

    def _next(self) -> None:
        while self._waiting and self.used + self._waiting[0][0] <= self.limit:
            amount, turn = self._waiting.popleft()
            if not turn.done():
                super().take(amount)
                turn.set_result(None)


def _arrived(request: Sent | BadRequest, size: int, budget: Budget) -> Arrived[Sent]:
    return Arrived(request, size, budget, request if isinstance(request, BadRequest) else None)


def reader(message_class: type[Decoded], bytes_max: int, lists: ListLimits = NO_LISTS) -> Read[Decoded]:
    """A function that decodes a request, or returns the refusal of bytes that it cannot decode or may not accept."""
    parse, descriptor = message_class.FromString, cast("Descriptor", message_class.DESCRIPTOR)
    type_name = descriptor.full_name

    def read(data: bytes) -> Decoded | BadRequest:
        size = len(data)
        if size > SMALL_BYTES:
            if size > bytes_max:
                return _no_request(f"{type_name}, which has at most {bytes_max} bytes", size)
            if has_more_fields(data, FIELDS_MAX):
                return _no_request(f"{type_name}, which has at most {FIELDS_MAX} fields", size)
        if size > OTHER_REQUEST_BYTES_MAX:
            beside = bytes_beside_bodies(data, descriptor, FIELDS_TO_BODIES_MAX)
            if beside > OTHER_REQUEST_BYTES_MAX:
                return _no_request(
                    f"{type_name}, which has at most {OTHER_REQUEST_BYTES_MAX} bytes beside bodies", size
                )
        try:
            request = parse(data)
        except DecodeError:
            return _no_request(type_name, size)
        for each in lists.lists if size > lists.bytes_min else ():
            if size > each.entries_max * each.entry_bytes_min:
                holders: Iterable[object] = (request,)
                for step in each.steps:
                    holders = [entry for holder in holders for entry in step(holder)]
                count = max(map(len, map(each.entries, holders)), default=0)
                if count > each.entries_max:
                    return BadRequest(
                        f"{each.name} has {count} entries, at most {each.entries_max} are allowed in one"
                        f" {lists.method}; send several requests"
                    )
        return request

    return read


def _no_request(what: str, size: int) -> BadRequest:
    return BadRequest(f"the {size} bytes sent are no {what}")
