"""A call as the rest of the server sees it, and the interface of a door. This module does not use gRPC's library.

A door accepts connections. For each call it makes a `Call` and runs the handler in its own task; cancelling that task
ends the call. `transport.grpc_door` is the built-in door.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from popserver.front.source import Source


class EndCode(IntEnum):
    """Why a call ends without an answer. The numbers are gRPC's status codes on the wire."""

    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class EndStatus(NamedTuple):
    """The status code of a call that ends without an answer, and a sentence for the user."""

    code: EndCode
    sentence: str = ""


class Encodable(Protocol):
    """What a handler returns or writes: a protobuf message, or an object that encodes itself like one."""

    def SerializeToString(self) -> bytes: ...  # noqa: N802


# Writes one frame of a streamed answer.
Write = Callable[[Encodable], Awaitable[None]]


class Call(Protocol):
    """One call of a client."""

    @property
    def Disconnected(self) -> type[Exception]:  # noqa: N802 - a class, as PEP 249 has them on connections
        """The exception that `write` raises when the connection is lost."""

    @property
    def headers(self) -> Mapping[str, str | bytes]:
        """Values by name; names are in lower case. The value is bytes if the name ends in `-bin`."""

    @property
    def peer(self) -> str:
        """`HOST:PORT` of the client; empty if unknown."""

    @property
    def connection(self) -> int | None:
        """The front's number for the call's connection; None if the connection did not come through the front."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the client cancelled the call or its connection closed."""

    def remaining_ms(self) -> int | None:
        """Milliseconds until the call's deadline; None if it has none."""

    async def read(self) -> bytes | None:
        """The next request, undecoded; None after the last one. The door reads no request before this is called."""

    async def send_headers(self) -> None:
        """Send the answer's headers now. By default they are sent with the first frame."""

    @property
    def write(self) -> Write:
        """Writes one frame of the answer once the client is ready for it. Raises `Disconnected`."""

    def end(self, status: EndStatus) -> None:
        """Set the status with which the call ends when its handler returns. A unary handler's answer is dropped."""

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the call has ended, for any reason."""


# A unary handler returns the answer; a streaming handler writes frames and returns None.
Handler = Callable[[Call], Awaitable[Encodable | None]]


class Route(NamedTuple):
    """One method of a service, for a door."""

    handler: Handler
    encode: Callable[[Encodable], bytes]  # for the answer, or for each frame of it
    streams: bool  # whether the answer is a stream


class Service(NamedTuple):
    """The methods of one service, by name."""

    name: str
    routes: Mapping[str, Route]


class Door(Protocol):
    """Accepts calls and runs their handlers."""

    def listen_plaintext(self, address: str) -> int:
        """Bind an address and return the port. Raises `RuntimeError` if the address cannot be bound."""

    def listen_tls(self, address: str, source: Source) -> int:
        """The same with TLS. Every handshake asks `source` for a new certificate."""

    def serve(self, services: Sequence[Service]) -> None: ...

    async def start(self) -> None: ...

    async def stop(self, timeout_s: float) -> None:
        """Accept no more calls. After the timeout, cancel the calls that still run."""


def encode(frame: Encodable) -> bytes:
    """The bytes of any frame."""
    return frame.SerializeToString()
