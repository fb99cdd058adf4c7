"""Servers with room for few requests on their way in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from popserver.front.certificate import Certificate
from popserver.front.self_signed import make_certificate
from popserver.front.source import StaticCertificate
from popserver.model.budget import Budget
from popserver.transport.limits import CallLimits
from popserver.transport.listen import PLAINTEXT, Listening
from tests.support.wire_server import LIMITS, WireServer, a_message, opened

MIB = 1024 * 1024


PATIENCE_S = 30


# 3 MiB for large requests, 1 MiB for small ones, 1 MiB without a signature.
NARROW = LIMITS._replace(incoming_bytes_max=4 * MIB, request_bytes_max=MIB)


def budget(wire_server: WireServer, name: str) -> Budget:
    return wire_server.broker.engine.budgets[name]


@asynccontextmanager
async def narrow(
    folder: Path, listening: Listening = PLAINTEXT, limits: CallLimits = NARROW
) -> AsyncIterator[WireServer]:
    async with opened(folder, limits=limits, listening=listening) as wire_server:
        await wire_server.send(a_message("there"))
        yield wire_server


def permissive(folder: Path) -> Listening:
    from datetime import UTC, datetime

    made: Certificate = make_certificate("127.0.0.1", datetime.now(UTC))
    return Listening("permissive", StaticCertificate(made))
