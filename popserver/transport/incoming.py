"""The memory for requests: counted from before they arrive until they are answered.

A request is read only after the headers of its call were accepted. gRPC then lets the client send as much as it
announces, up to the largest request, and shows nothing of it before its end. So a request that does not arrive at once
is late, and the budget counts what it may still bring. If the budget is too small for all late requests, the newest are
refused, and what they sent is dropped. A request that has arrived counts with its size, before it is decoded, until it
is answered. Small requests have their own budget, so that large requests cannot block them. Callers without a required
signature have their own budget too.

The partly sent frames that `half_sent` finds count like large requests. If they do not fit into the budget, the streams
of the connection that sent most are ended.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from popserver.front.front import Front
from popserver.model.budget import Budget, Budgets
from popserver.model.errors import BadRequest, PopError, RequestTooSlow
from popserver.transport.call import Call
from popserver.transport.half_sent import SLACK_BYTES, GrpcFrames, Unread
from popserver.transport.limits import CallLimits
from popserver.transport.requests import NOTHING, SMALL_BYTES, Arrived, Read, Sent

SWEEP_S = 0.025
SWEEP_EACH_S = 50e-6  # per late request, so that a sweep over very many does not take all of the server's time
# A request is late after this time. Without the front the server does not know how much a connection sent, and every
# late request counts as the largest one, so it gets more time.
LATE_S = 0.05
LATE_WITHOUT_FRONT_S = 0.1
CHECK_EACH_S = 20e-6  # per connection with an open stream, for the same reason
CHECKS = 6  # so many looks after the last bytes arrived: then all of them are older than `AGE_S`
LOG_ENDED_EVERY_S = 60.0

log = structlog.get_logger("popserver.rpc")

Task = asyncio.Task[object]


@dataclass(slots=True, eq=False)
class _Reading:
    """A request that the server waits for."""

    task: Task
    call: Call
    is_anonymous: bool
    since_s: float
    passed_at_start: int  # bytes through the front, of all connections
    number: int | None = None  # the front's number of the connection, set when the request is late
    base: int = 0  # bytes that the connection had sent at the start
    refusal: PopError | None = None


class _Late:
    """The bytes that late requests of one budget are expected to bring."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.expected = 0


class GrpcIncoming:
    """The requests that arrive at one server, and the budgets for them."""

    def __init__(self, budgets: Budgets, limits: CallLimits, front: Front | None) -> None:
        total = limits.incoming_bytes_max
        self._largest = limits.request_bytes_max
        self._patience_s = (
            limits.request_ms / 1_000,
            limits.unsigned_request_ms / 1_000,
        )  # index: whether the caller is a stranger
        self._front = front
        self._late_after_s = LATE_WITHOUT_FRONT_S if front is None else LATE_S
        self._small = budgets.add("small requests", total // 4, "bytes", "max_incoming")
        self._large = budgets.add("large requests", total - total // 4, "bytes", "max_incoming")
        unsigned = max(total // 4, self._largest)
        self._unsigned = budgets.add("requests without a signature", unsigned, "bytes", "max_incoming")
        self._late = (_Late(self._large), _Late(self._unsigned))  # index: whether the caller is a stranger
        self._readings: dict[Task, _Reading] = {}  # the oldest first
        self._alarm: asyncio.TimerHandle | None = None
        self._unread: dict[int, Unread] = {}  # by connection, if it has an open stream of requests
        self._expected_of: dict[int | None, int] = {}  # bytes expected from late requests, by connection
        self._half_sent = 0  # bytes of partly sent frames, in the budget of large requests
        self._checked_at = 0  # bytes through the front at the last look
        self._checks_left = 0  # looks that are still to be made
        self._said_ended_at_s = -math.inf

    async def receive(self, call: Call, read: Read[Sent], *, is_anonymous: bool) -> Arrived[Sent]:
        """The next request of a call, decoded by `read`. The caller must give its size back to its budget.

        Raises `TooManyRequests` or `RequestTooSlow` if the request does not arrive in time.
        """
        task = asyncio.current_task()
        assert task is not None
        loop = task.get_loop()
        passed = 0 if self._front is None else self._front.passed
        reading = self._readings[task] = _Reading(task, call, is_anonymous, loop.time(), passed)
        if self._alarm is None:
            self._alarm = loop.call_later(SWEEP_S, self._sweep)
        try:
            data = await call.read()
        except asyncio.CancelledError:
            if reading.refusal is None:
                raise
            task.uncancel()
            raise reading.refusal from None
        finally:
            del self._readings[task]
        if data is None:
            return NOTHING._replace(refusal=BadRequest("the call ended without a request; send one"), is_end=True)
        if self._unread:
            number = call.connection
            unread = None if number is None else self._unread.get(number)
            if unread is not None:
                unread.read(len(data))
        size = len(data)
        budget = self._unsigned if is_anonymous else self._small if size <= SMALL_BYTES else self._large
        if not budget.take(size):
            refused = read(data) if size <= SMALL_BYTES else None
            return Arrived(refused, 0, budget, budget.refusal(f"a request of {size} bytes"))
        request = read(data)
        return Arrived(request, size, budget, request if isinstance(request, BadRequest) else None)

    def hang_up(self, call: Call) -> None:
        """Close the connection of a call and drop what it carries, if the connection came through the front."""
        number = call.connection
        if self._front is not None and number is not None:
            self._front.hang_up(number, "the client does not read its answers")

    def frames(self, call: Call, read: Read[Sent]) -> GrpcFrames[Sent]:
        """The frames of a stream of requests. A frame that arrives too slowly, or does not fit, ends the stream."""
        loop = asyncio.get_running_loop()
        number = call.connection if self._front is not None else None
        traffic = None if self._front is None or number is None else self._front.connection(number)
        if number is None or traffic is None:
            return GrpcFrames(call, read, None, _nothing)
        unread = self._unread.get(number)
        if unread is None:
            unread = self._unread[number] = Unread(traffic, call.peer, loop.time())
        self._keep_sweeping(loop)
        return GrpcFrames(call, read, unread, lambda: self._frames_end(number))

    def _frames_end(self, number: int) -> None:
        if not self._unread[number].frames:
            del self._unread[number]

    def signed(self, call: Call) -> None:
        """Tell the front that the caller signed: it closes other connections first when it has too many."""
        if self._front is not None:
            number = call.connection
            if number is not None:
                self._front.signed(number)

    def _sweep(self) -> None:
        """Refuse late requests that do not fit into the budget or take too long."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        late: tuple[list[_Reading], list[_Reading]] = ([], [])
        for reading in self._readings.values():
            if now_s - reading.since_s < self._late_after_s:
                break
            if reading.refusal is None:
                patience_s = self._patience_s[reading.is_anonymous]
                if now_s - reading.since_s > patience_s:
                    self._refuse(reading, RequestTooSlow(f"the request had not arrived after {patience_s:g} s"))
                else:
                    late[reading.is_anonymous].append(reading)
        self._expected_of.clear()
        for place, readings in zip(self._late, late, strict=True):
            self._make_room(place, readings)
        self._check_half_sent(now_s)
        self._alarm = None
        if self._readings or self._unread or self._half_sent:
            pause_s = SWEEP_EACH_S * (len(late[0]) + len(late[1])) + CHECK_EACH_S * len(self._unread)
            self._keep_sweeping(loop, max(SWEEP_S, pause_s))

    def _keep_sweeping(self, loop: asyncio.AbstractEventLoop, pause_s: float = SWEEP_S) -> None:
        if self._alarm is None:
            self._alarm = loop.call_later(pause_s, self._sweep)

    def _check_half_sent(self, now_s: float) -> None:
        """Count partly sent frames. End streams whose frames do not fit into the budget or take too long."""
        if not self._must_check():
            return
        self._large.give_back(self._half_sent)
        found: dict[int, int] = {}  # bytes, by connection
        for number, unread in self._unread.items():
            size = unread.check(now_s)
            if size:
                size -= self._expected_of.get(number, 0)
            if size > 0 and unread.waits:
                found[number] = size
            else:
                unread.late_since_s = None
        ended: dict[int, int] = {}
        self._half_sent = sum(found.values())
        while not self._large.take(self._half_sent):
            worst = max(found, key=found.__getitem__)
            ended[worst] = found.pop(worst)
            self._half_sent -= ended[worst]
        for number, size in ended.items():
            self._end(number, size, self._large.refusal("one more frame that takes long to arrive"), now_s)
        patience_s = self._patience_s[False]
        for number, size in found.items():
            unread = self._unread[number]
            if unread.late_since_s is None:
                unread.late_since_s = now_s
            elif now_s - unread.late_since_s > patience_s:
                self._end(number, size, RequestTooSlow(f"a frame had not arrived after {patience_s:g} s"), now_s)

    def _must_check(self) -> bool:
        passed = 0 if self._front is None else self._front.passed
        if passed - self._checked_at >= SLACK_BYTES:
            self._checked_at = passed
            self._checks_left = CHECKS
        self._checks_left -= 1
        return self._checks_left >= 0 or self._half_sent > 0

    def _end(self, number: int, size: int, refusal: PopError, now_s: float) -> None:
        unread = self._unread[number]
        unread.refuse(refusal)
        if now_s - self._said_ended_at_s >= LOG_ENDED_EVERY_S:  # a flood must not fill the log
            self._said_ended_at_s = now_s
            log.warning("ended streams with a partly sent frame", peer=unread.peer, bytes=size, reason=str(refusal))

    def _make_room(self, place: _Late, late: list[_Reading]) -> None:
        place.budget.give_back(place.expected)
        place.expected = 0
        if not late:
            return
        connections = self._by_connection(late)
        expected = {number: self._expected(number, there) for number, there in connections.items()}
        total = sum(expected.values())
        refused: list[_Reading] = []
        while not place.budget.take(total):
            refused.append(reading := late.pop())
            there = connections[reading.number]
            there.remove(reading)
            total -= expected[reading.number]
            expected[reading.number] = self._expected(reading.number, there)
            total += expected[reading.number]
        place.expected = total
        for number, size in expected.items():
            self._expected_of[number] = self._expected_of.get(number, 0) + size
        for reading in refused:
            self._refuse(reading, place.budget.refusal("one more request that takes long to arrive"))

    def _by_connection(self, late: Iterable[_Reading]) -> dict[int | None, list[_Reading]]:
        """Late requests by connection, the oldest first. None: all connections whose bytes are not counted."""
        found: dict[int | None, list[_Reading]] = {}
        for reading in late:
            if self._front is not None and reading.number is None:
                self._locate(reading, self._front)
            found.setdefault(reading.number, []).append(reading)
        return found

    def _locate(self, reading: _Reading, front: Front) -> None:
        number = reading.call.connection
        passed = None if number is None else front.bytes_from(number)
        if passed is not None:
            reading.number = number
            reading.base = max(0, passed - (front.passed - reading.passed_at_start))

    def _expected(self, number: int | None, late: list[_Reading]) -> int:
        """How many bytes these late requests of one connection may have in memory before the next sweep."""
        if not late:
            return 0
        most = len(late) * self._largest
        if number is None or self._front is None:
            return most
        passed = self._front.bytes_from(number)
        sent = 0 if passed is None else passed - late[0].base
        return min(most, max(sent, len(late) * SMALL_BYTES))

    def _refuse(self, reading: _Reading, refusal: PopError) -> None:
        reading.refusal = refusal
        reading.task.cancel()


def _nothing() -> None:
    """For a stream whose connection is unknown."""
