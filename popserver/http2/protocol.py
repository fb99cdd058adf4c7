"""A client's connection in the event loop: between a transport and the calls of its streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import structlog

from popserver.front.turns import Rate
from popserver.http2 import headers
from popserver.http2.call import Http2Call
from popserver.http2.connection import Connection
from popserver.http2.frames import ConnectionFailure, ErrorCode
from popserver.http2.headers import RequestHead
from popserver.http2.other import OtherRequest
from popserver.http2.stream import Stream, Waiting
from popserver.transport.call import Call, EndCode, EndStatus, Route, encode

# So many calls of one connection begin before others have their turn.
CALLS_AT_ONCE = 16
# Calls of all connections that wait for their clients: for the request, or until the answer is read. Each costs 5 KB,
# and an ordinary one waits for a moment.
WAITING_MAX = 5_000
WRITE_BUFFER_BYTES = 256 * 1024
# A client that has disappeared is noticed after so long.
KEEPALIVE_S = 60.0
KEEPALIVE_ANSWER_S = 20.0
# A client that resets more streams than this has to wait.
RESETS_PER_S = 2_000
RESETS_AT_ONCE = 2_000
PAUSE_S = 0.02
# How long a client may take to answer GOAWAY; and to take the last bytes.
LEAVE_S = 1.0
CLOSE_S = 2.0


async def _nothing_answers(_call: Call) -> None:
    """A call that is refused has no handler."""


NO_ROUTE = Route(_nothing_answers, encode, streams=False)
_KEEPALIVE, _LEAVING = b"popmq-ka", b"popmq-go"

log = structlog.get_logger("popserver.http2")


def _nothing() -> None:
    """No callback."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a client may take, in seconds."""

    handshake_s: float  # to send its settings
    idle_s: float  # without a call
    answer_s: float  # to read the rest of an answer


@dataclass(slots=True)
class Shared:
    """What all connections of a server share."""

    timeouts: Timeouts
    streams_max: int
    routes: Mapping[str, Route] = field(default_factory=dict)  # by path
    clients: dict[ClientConnection, None] = field(default_factory=dict)
    is_leaving: bool = False  # the server stops
    kept: int = 0  # bytes that have arrived and that no handler has asked for
    kept_max: int = 1 << 40
    too_much: Callable[[], None] = _nothing  # called when more than `kept_max` is kept
    lost: Callable[[], None] = _nothing  # called when a connection is lost
    waiting: dict[Waiting, None] = field(default_factory=dict)  # calls that wait for their clients, the oldest first


class ClientConnection(asyncio.Protocol):
    """One connection."""

    def __init__(self, shared: Shared, peer: str, left: Callable[[], None], signed: Callable[[], None]) -> None:
        """`left` is called when the connection is lost, `signed` when a caller has signed."""
        self.peer = peer
        self.signed = signed
        self.connection = Connection(self, shared.streams_max)
        self.kept = 0
        self._shared = shared
        self._left = left
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._starting: list[Http2Call] = []
        self._is_flushing = False
        self._is_full = False  # the client does not read
        self._is_ending = False  # the server sends nothing more
        self.is_gone = False  # lost or failed: what is written now does not reach the client
        self._is_lost = False
        self._pause: asyncio.TimerHandle | asyncio.Handle | None = None
        self._resets = Rate(RESETS_PER_S, RESETS_AT_ONCE)
        now_s = self._loop.time()
        self._made_s = self._heard_s = self._used_s = now_s
        self._has_heard = False
        self._asked_s: float | None = None  # when the last keepalive was sent, if it is not answered

    # From the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._shared.clients[self] = None
        self.flush_soon()
        if self._shared.is_leaving:
            self.leave()

    def data_received(self, data: bytes) -> None:
        self._has_heard = True
        if self._is_ending:
            return
        if self._pause is None:
            self._take(data)
        else:
            self.connection.frames.feed(data)

    def eof_received(self) -> None:
        """A client that sends no more has gone: no client closes one direction only."""

    def connection_lost(self, error: Exception | None) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._shared.clients.pop(self, None)
        self.is_gone = self._is_lost = True
        self._close_streams()

    def pause_writing(self) -> None:
        """The client does not read what it asked for, so it may not ask for more."""
        self._is_full = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_full = False
        if self._transport.is_closing():
            return
        if self._pause is None:
            self._transport.resume_reading()
        self.flush_soon()

    def _take(self, data: bytes) -> None:
        connection = self.connection
        connection.receive(data, self._loop.time(), CALLS_AT_ONCE)
        starting, self._starting = self._starting, []
        if connection.failure is not None:
            self._fail()
            return
        for call in starting:
            if not call.is_cancelled:  # otherwise the client has reset it already
                call.task = self._loop.create_task(call.run())
        if connection.frames.has_more and not connection.is_held:
            self._hold(self._loop.call_soon(self._go_on))
        if not connection.outgoing.is_empty or (connection.has_left and not connection.streams):
            self.flush_soon()

    def _hold(self, pause: asyncio.Handle) -> None:
        """Take nothing until the pause is over."""
        if self._pause is None:
            self._transport.pause_reading()
        else:
            self._pause.cancel()
        self._pause = pause

    def _go_on(self) -> None:
        self._pause = None
        self.connection.is_held = False
        if self._transport.is_closing():
            return
        if not self._is_full:
            self._transport.resume_reading()
        self._take(b"")

    def _fail(self) -> None:
        self.is_gone = True
        log.debug("connection closed", peer=self.peer, reason=str(self.connection.failure))
        self._flush()
        self._close()
        self._close_streams()

    def _close_streams(self) -> None:
        """Close the streams some at a time: very many handlers must not end in one round of the event loop."""
        self.connection.close(CALLS_AT_ONCE)
        if self.connection.streams:
            self._loop.call_soon(self._close_streams)
        elif self._is_lost:
            left, self._left = self._left, _nothing
            left()
            self._shared.lost()

    # From the connection.

    def opened(self, stream: Stream, head: RequestHead) -> None:
        if not head.is_grpc:
            outgoing, status = self.connection.outgoing, 415 if head.method == "POST" else 405
            other = OtherRequest(outgoing, stream, status, self._other_arrived, self._loop.time())
            stream.listener = other
            self.waits(other)
            return
        route = self._shared.routes.get(head.path, NO_ROUTE)
        stream.listener = call = Http2Call(self, stream, head, route, self._loop.time())
        refusal = self._refusal(head)
        if refusal is not None:
            call.fail(refusal)
            return
        self._starting.append(call)
        self.waits(call)

    def _refusal(self, head: RequestHead) -> EndStatus | None:
        """How a call ends that no handler gets."""
        encoding = head.fields.get("grpc-encoding", "identity")
        if head.is_too_long:
            sentence = f"the headers of the call exceed {headers.FIELDS_BYTES_MAX} bytes"
            return EndStatus(EndCode.RESOURCE_EXHAUSTED, sentence)
        if head.path not in self._shared.routes:
            return EndStatus(EndCode.UNIMPLEMENTED, f"this server has no method {head.path}")
        if encoding != "identity":
            sentence = f"this server does not decompress '{encoding}'; send without compression"
            return EndStatus(EndCode.UNIMPLEMENTED, sentence)
        return None

    def acknowledged(self, ping: bytes) -> None:
        self._asked_s = None
        if ping == _LEAVING:
            self._leave_now()

    def was_reset(self) -> None:
        if not self._resets.take(self._loop.time()):
            self.connection.is_held = True
            self._hold(self._loop.call_later(PAUSE_S, self._go_on))

    # From calls.

    def flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def keeps(self, amount: int) -> None:
        self.kept += amount
        self._shared.kept += amount
        if amount > 0 and self._shared.kept > self._shared.kept_max:
            self._shared.too_much()

    def waits(self, waiting: Waiting) -> None:
        waits = self._shared.waiting
        waits[waiting] = None
        if len(waits) > WAITING_MAX:
            next(iter(waits)).give_up()

    def stops_waiting(self, waiting: Waiting) -> None:
        self._shared.waiting.pop(waiting, None)

    def _other_arrived(self, other: OtherRequest) -> None:
        self.stops_waiting(other)
        self.flush_soon()

    def hang_up(self, why: str) -> None:
        log.debug("connection closed", peer=self.peer, reason=why)
        self._transport.abort()

    def _flush(self) -> None:
        self._is_flushing = False
        if self._is_full or self._is_ending or self._transport.is_closing():
            return
        connection = self.connection
        out = connection.outgoing.flush()
        if out:
            self._transport.write(b"".join(out))
        if not connection.streams:
            self._used_s = self._loop.time()
            if connection.has_left:
                self._end_own_side()
                return
        if not connection.outgoing.is_empty and not self._is_full:
            self.flush_soon()

    # From the door.

    def leave(self) -> None:
        """Accept no more calls, and close when the last one has ended."""
        self.connection.leave(finally_=False)
        self.connection.ping(_LEAVING)
        self.flush_soon()
        self._loop.call_later(LEAVE_S, self._leave_now)

    def _leave_now(self) -> None:
        """The client has opened its last stream, or does not answer."""
        if not self.connection.has_left and not self._transport.is_closing():
            self.connection.leave(finally_=True)
            self.flush_soon()

    def fail(self, failure: ConnectionFailure) -> None:
        """End the connection, and send the client the reason."""
        self.connection.fail(failure)
        self._fail()

    def cancel(self) -> None:
        """Cancel every call."""
        for call in self._calls():
            if call.task is not None:
                call.task.cancel()

    def check_timeouts(self, now_s: float) -> None:
        """Check everything that takes too long."""
        timeouts = self._shared.timeouts
        for call in self._calls():
            call.expire(now_s)
            since_s = call.blocked_s if call.finished_s is None else call.finished_s
            if since_s is not None and now_s - since_s > timeouts.answer_s:
                call.reset()
        for other in self._others():
            if now_s - other.since_s > timeouts.answer_s:
                self.connection.reset(other.stream, ErrorCode.CANCEL)
                self.flush_soon()
        if self._has_heard:
            self._has_heard, self._heard_s = False, now_s
        if self.connection.streams:
            self._used_s = now_s
        if not self.connection.is_ready:
            if now_s - self._made_s > timeouts.handshake_s:
                self.hang_up("it sent no settings")
        elif now_s - self._used_s > timeouts.idle_s:
            self.connection.leave(finally_=True)
            self._flush()
        else:
            self._keep_alive(now_s)

    def _keep_alive(self, now_s: float) -> None:
        if self._asked_s is not None:
            if now_s - self._asked_s > KEEPALIVE_ANSWER_S and now_s - self._heard_s > KEEPALIVE_ANSWER_S:
                self.hang_up("it does not answer")
        elif now_s - self._heard_s > KEEPALIVE_S:
            self._asked_s = now_s
            self.connection.ping(_KEEPALIVE)
            self.flush_soon()

    def _end_own_side(self) -> None:
        """End the server's side, and wait for the client to close.

        A socket that is closed while the client's next request arrives is reset; answers on their way would be lost.
        """
        if not self._transport.can_write_eof():  # TLS ends its side itself
            self._close()
            return
        self._is_ending = True
        try:
            self._transport.write_eof()
        except OSError:  # the client has gone already
            self._transport.abort()
        else:
            self._loop.call_later(CLOSE_S, self._transport.abort)

    def _close(self) -> None:
        """Send what the transport still holds, then close."""
        if not self._transport.is_closing():
            self._transport.close()
            self._loop.call_later(CLOSE_S, self._transport.abort)

    @property
    def has_failed(self) -> bool:
        return self.connection.failure is not None

    def _others(self) -> list[OtherRequest]:
        listeners = [stream.listener for stream in self.connection.streams.values()]
        return [each for each in listeners if isinstance(each, OtherRequest)]

    def _calls(self) -> list[Http2Call]:
        listeners = [stream.listener for stream in self.connection.streams.values()]
        return [each for each in listeners if isinstance(each, Http2Call)]
