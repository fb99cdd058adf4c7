"""A call as the rest of the server sees it, and what a door has to offer. Nothing here knows gRPC's library.

A door accepts connections, makes one `Call` of each call and runs its handler in a task of its own; cancelling that
task ends the call. `transport.grpc_door` is the door that is built in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from popserver.front.source import Source


class EndCode(IntEnum):
    """Why a call ends without an answer. The numbers are those of gRPC's status codes on the wire."""

    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAUTHENTICATED = 16


class EndStatus(NamedTuple):
    """The status and the sentence with which a call ends."""

    code: EndCode
    sentence: str = ""


class Encodable(Protocol):
    """What a handler returns or writes: a protobuf message, or something that encodes itself like one."""

    def SerializeToString(self) -> bytes: ...  # noqa: N802


# Writes one frame of a streamed answer.
Write = Callable[[Encodable], Awaitable[None]]


class Call(Protocol):
    """One call of a client."""

    @property
    def Disconnected(self) -> type[Exception]:  # noqa: N802 - a class, as PEP 249 has them on connections
        """What `write` raises when the connection is gone."""

    @property
    def headers(self) -> Mapping[str, str | bytes]:
        """By name, in lower case. Those whose name ends in `-bin` are bytes."""

    @property
    def peer(self) -> str:
        """`HOST:PORT` of the client; empty where that is not known."""

    @property
    def connection(self) -> int | None:
        """The front's number of the call's connection; None for one that did not come through the front."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the call, or its connection has closed."""

    def remaining_ms(self) -> int | None:
        """Milliseconds until the call's deadline; None where it has none."""

    async def read(self) -> bytes | None:
        """The next request, as it came; None after the last one. The door reads nothing ahead of this."""

    async def send_headers(self) -> None:
        """Send the answer's headers now. Otherwise they go with the first frame."""

    @property
    def write(self) -> Write:
        """Writes one frame of the answer, when the client is ready for it. Raises `Disconnected`."""

    def end(self, status: EndStatus) -> None:
        """When the handler returns, the call ends with this status; what a unary handler returns is dropped."""

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call back when the call has ended, however it ends."""


# A unary handler returns the answer; a streaming one writes its frames and returns None.
Handler = Callable[[Call], Awaitable[Encodable | None]]


class Route(NamedTuple):
    """One method, as a door serves it."""

    handler: Handler
    encode: Callable[[Encodable], bytes]  # of an answer, or of each of its frames
    streams: bool  # whether the answer is a stream


class Service(NamedTuple):
    """The methods of one service, by name."""

    name: str
    routes: Mapping[str, Route]


class Door(Protocol):
    """Accepts calls and hands them to their handlers."""

    def listen_plaintext(self, address: str) -> int:
        """Bind an address; returns the port. Raises `RuntimeError` where that is not possible."""

    def listen_tls(self, address: str, source: Source) -> int:
        """The same with TLS. `source` is asked for a fresh certificate at every handshake."""

    def serve(self, services: Sequence[Service]) -> None: ...

    async def start(self) -> None: ...

    async def stop(self, timeout_s: float) -> None:
        """Accept no more calls; after the timeout cut off those that still run."""


def encode(frame: Encodable) -> bytes:
    """The bytes of any frame."""
    return frame.SerializeToString()
