"""A call as the rest of the server sees it, and the interface of a door. This module knows no door.

A door accepts connections. For each call it makes a `Call` and runs the handler in its own task; cancelling that task
ends the call. `http2.door` is the built-in door, `grpcio.door` that of gRPC's library.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from popserver.model.budget import Budget
from popserver.transport.listen import Listening


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
    def is_cancelled(self) -> bool:
        """Whether the client cancelled the call or its connection closed, before all of the answer was sent."""

    def remaining_ms(self) -> int | None:
        """Milliseconds until the call's deadline; None if it has none."""

    def take(self) -> bytes | None:
        """The next request, undecoded; None if it is not complete."""

    async def next_size(self) -> int | None:
        """Wait for the size of the next request, in bytes; None after the last one."""

    def grant(self) -> None:
        """Let the next request arrive in full: its size is known, and there is memory for it.

        Before that, a client can send at most 64 KiB.
        """

    async def next(self) -> bytes | None:
        """Wait for the next request, which was granted; None if the client ends its side before."""

    def signed(self) -> None:
        """The caller has signed. If there are too many connections, others are closed first."""

    def hang_up(self, why: str) -> None:
        """Close the connection of the call. `why` is for the log."""

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

    @property
    def connections_max(self) -> int:
        """How many connections it accepts at one time."""

    @property
    def budgets(self) -> Sequence[Budget]:
        """What `popmq status` shows of its connections."""

    @property
    def connected(self) -> int:
        """How many connections there are, as far as the door knows."""

    def listen(self, host: str, port: int, listening: Listening, given: Sequence[socket.socket] = ()) -> int:
        """Bind host and port (0: any free port), and return the port. `given`: sockets that are bound there already.

        Raises `CannotListen` if the address cannot be bound.
        """

    def serve(self, services: Sequence[Service]) -> None: ...

    async def start(self) -> None:
        """Accept connections. Raises `CannotListen` if another program has taken the address meanwhile."""

    def stop_accepting(self) -> None:
        """Accept no more connections, if the door can. Open ones stay, and their calls are served."""

    def close(self) -> None:
        """Free the address at once, for a server that cannot start."""

    async def stop(self, timeout_s: float) -> None:
        """Accept no more calls. After the timeout, cancel the calls that still run."""


def encode(frame: Encodable) -> bytes:
    """The bytes of any frame."""
    return frame.SerializeToString()
