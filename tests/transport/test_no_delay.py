"""No connection of a server waits to fill a segment (Nagle's algorithm): that costs 40 ms on every quiet exchange."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import Literal

import grpc
import pytest
import uvloop

import popserver
from popserver.app import App
from popserver.config import GivenConfig

PATIENCE_S = 20
_ALONE = (("grpc.use_local_subchannel_pool", 1),)
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.mark.parametrize(
    ("mode", "over_tls"),
    [
        pytest.param("permissive", False, marks=pytest.mark.builtin("TLS and plaintext on one port")),
        pytest.param("permissive", True, marks=pytest.mark.builtin("TLS and plaintext on one port")),
        ("plaintext", False),
        ("tls", True),
    ],
)
@pytest.mark.parametrize("loop", LOOPS)
def test_the_server_s_side_of_a_connection_sends_at_once(
    loop: str, mode: Literal["permissive", "plaintext", "tls"], over_tls: bool, tmp_path: Path
) -> None:
    folder = None if mode == "plaintext" else tmp_path

    async def run() -> None:
        app = App(GivenConfig(database_url="sqlite://", port=0, drain_timeout=1_000, tls=mode, tls_dir=folder))
        await app.start()
        try:
            async with _channel(app, folder if over_tls else None) as channel:
                await asyncio.wait_for(channel.channel_ready(), PATIENCE_S)
                assert _without_delay(app.server.port) == [True]
        finally:
            await app.stop()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(run())


def test_an_embedded_broker_s_connections_send_at_once() -> None:
    with popserver.embedded() as broker, grpc.insecure_channel(broker.endpoint, options=_ALONE) as channel:
        grpc.channel_ready_future(channel).result(PATIENCE_S)
        assert _without_delay(broker.app.server.port) == [True]


def _channel(app: App, trusted: Path | None) -> grpc.aio.Channel:
    if trusted is None:
        return grpc.aio.insecure_channel(app.endpoint, options=_ALONE)
    credentials = grpc.ssl_channel_credentials((trusted / "cert.pem").read_bytes())
    return grpc.aio.secure_channel(app.endpoint, credentials, options=_ALONE)


def _without_delay(port: int) -> list[bool]:
    """Of every connection that this process has accepted at the port: whether it sends without delay."""
    found = []
    for name in Path("/dev/fd").iterdir():
        with suppress(OSError):
            # Raises for what is no socket.
            each = socket.socket(fileno=int(name.name))
            try:
                if each.family in (socket.AF_INET, socket.AF_INET6) and each.getsockname()[1] == port:
                    each.getpeername()  # raises for the listening socket, which has none
                    found.append(bool(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
            finally:
                each.detach()
    return found
