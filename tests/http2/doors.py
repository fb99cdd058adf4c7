"""The doors under test, served alone: no broker behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from popserver.front.source import Source
from popserver.http2.door import Http2Door
from popserver.transport.call import Door, Service
from popserver.transport.grpc_door import GrpcDoor
from popserver.transport.limits import CallLimits
from tests.http2.service import TEST_SERVICE

# Makes a door; takes its limits and how many connections it may have.
MakeDoor = Callable[[CallLimits, int], Door]
DOORS: dict[str, MakeDoor] = {"grpc": GrpcDoor, "http2": Http2Door}
# Those that keep every rule of HTTP/2; gRPC's own resets requests that are not gRPC.
CONFORMING = ("http2",)
CONNECTIONS_MAX = 1_000


class Served(NamedTuple):
    """A door that listens on 127.0.0.1; `tls_port` is 0 if it has no certificate."""

    door: Door
    port: int
    tls_port: int


@asynccontextmanager
async def served(
    make: MakeDoor,
    source: Source | None = None,
    services: Sequence[Service] = (TEST_SERVICE,),
    limits: CallLimits | None = None,
) -> AsyncIterator[Served]:
    """A running door, stopped at the end without patience."""
    door = make(limits or CallLimits(), CONNECTIONS_MAX)
    port = door.listen_plaintext("127.0.0.1:0")
    tls_port = 0 if source is None else door.listen_tls("127.0.0.1:0", source)
    door.serve(services)
    await door.start()
    try:
        yield Served(door, port, tls_port)
    finally:
        await door.stop(0)
