"""The port of the tests' own proxies."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest

from tests.support.accepting import AcceptingPort


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_of_the_last_moment_is_closed_too(turns: int) -> None:
    """However far asyncio is in accepting it."""

    async def serve(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with AcceptingPort(serve) as accepting:
        client = socket.create_connection(("127.0.0.1", accepting.port), timeout=20)
        for _ in range(turns):
            await asyncio.sleep(0)
    with client, suppress(ConnectionResetError):
        assert client.recv(1) == b""
