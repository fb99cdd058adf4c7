"""The door, served alone: no broker behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from popserver.front.source import Source
from popserver.grpcio.door import GrpcioDoor
from popserver.http2.door import Http2Door
from popserver.transport.call import Door, Service
from popserver.transport.limits import CallLimits
from popserver.transport.listen import PLAINTEXT, Engine, Listening, Mode
from tests.http2.service import TEST_SERVICE
from tests.support.grpc_engine import ENGINE

CONNECTIONS_MAX = 1_000


class Served(NamedTuple):
    """A door that listens on 127.0.0.1; `tls_port` is 0 if it has no certificate."""

    wire_server: Door
    port: int
    tls_port: int


def a_wire_server(limits: CallLimits, engine: Engine = ENGINE) -> Door:
    """A door of the engine under test."""
    return Http2Door(limits, CONNECTIONS_MAX) if engine == "builtin" else GrpcioDoor(limits, CONNECTIONS_MAX)


@asynccontextmanager
async def served(
    source: Source | None = None,
    services: Sequence[Service] = (TEST_SERVICE,),
    limits: CallLimits | None = None,
) -> AsyncIterator[Served]:
    """A running door, stopped at the end without patience."""
    wire_server = a_wire_server(limits or CallLimits())
    mode: Mode = "permissive" if ENGINE == "builtin" else "tls"
    port = wire_server.listen("127.0.0.1", 0, PLAINTEXT if source is None else Listening(mode, source))
    wire_server.serve(services)
    await wire_server.start()
    try:
        yield Served(wire_server, port, 0 if source is None else port)
    finally:
        await wire_server.stop(0)
