"""One stream of a connection: its windows, its state, and what waits to be sent on it."""

from __future__ import annotations

from typing import Protocol

from popserver.http2.headers import RequestHead


class Stream:
    """A request and its answer. Only the connection changes it."""

    __slots__ = (
        "_pending",
        "head",
        "id",
        "is_answered",
        "is_closed",
        "is_received",
        "length_left",
        "listener",
        "pending_bytes",
        "receive_window",
        "send_window",
        "trailers",
    )

    def __init__(self, id_: int, receive_window: int, send_window: int) -> None:
        self.id = id_
        self.receive_window = receive_window  # how many bytes the client may still send
        self.send_window = send_window  # how many bytes the server may still send; negative after some settings
        self.is_received = False  # the client has ended its side
        self.is_answered = False  # the server has ended its side
        self.is_closed = False  # the connection has forgotten it
        self.length_left: int | None = None  # of the body, if the client announced its length
        self.listener: StreamListener = NOBODY
        self.head: bytes | None = None  # a header block that is still to be sent
        self.trailers: bytes | None = None  # the last header block; it follows everything pending
        self.pending_bytes = 0
        self._pending: list[bytes | memoryview] = []

    def append(self, data: bytes) -> None:
        """Send this later."""
        self._pending.append(data)
        self.pending_bytes += len(data)

    def cut(self, size: int) -> bytes | memoryview:
        """Take the next `size` bytes that are pending."""
        self.pending_bytes -= size
        if len(self._pending) > 1:
            self._pending = [b"".join(self._pending)]
        data = self._pending[0]
        if size == len(data):
            self._pending.clear()
            return data
        rest = memoryview(data)
        self._pending[0] = rest[size:]
        return rest[:size]

    def drop(self) -> None:
        """Forget everything that is pending."""
        self._pending.clear()
        self.pending_bytes = 0
        self.head = self.trailers = None


class Waiting(Protocol):
    """A call that waits for its client: for the rest of the request, or until the answer is read."""

    def give_up(self) -> None:
        """End it."""


class StreamListener(Protocol):
    """What happens on one stream. The methods must not raise."""

    def received(self, data: bytes) -> None:
        """A part of the request's body has arrived."""

    def ended(self) -> None:
        """The request's body is complete."""

    def drained(self) -> None:
        """Everything pending was sent."""

    def closed(self, *, by_client: bool) -> None:
        """The stream is gone. `by_client`: without the end of its answer, for the client or the connection ended it."""


class _Nobody:
    def received(self, data: bytes) -> None: ...

    def ended(self) -> None: ...

    def drained(self) -> None: ...

    def closed(self, *, by_client: bool) -> None: ...


NOBODY = _Nobody()


class ConnectionListener(Protocol):
    """What happens on one connection."""

    def opened(self, stream: Stream, head: RequestHead) -> None:
        """A request begins. Set the stream's listener here."""

    def was_reset(self) -> None:
        """The client has reset a stream, or made the server reset it."""

    def acknowledged(self, ping: bytes) -> None:
        """The client has answered a ping."""
