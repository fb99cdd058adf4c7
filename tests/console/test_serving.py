"""The port of `popmq console`: what it takes from browsers, and what it believes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from popconsole import serving
from popconsole.visits import FORM_BYTES_MAX
from popserver.web.guard import BODY_BYTES_MAX
from tests.support.http import PATIENCE_S


async def _address(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the caller's address."""
    if scope["type"] == "http":
        await PlainTextResponse(str(Request(scope).client))(scope, receive, send)


@contextlib.asynccontextmanager
async def port() -> AsyncIterator[int]:
    """The port of a console that serves the application above."""
    server = serving.server_of(_address)
    server.config.port = 0
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup()
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        await server.shutdown()


Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def opened() -> AsyncIterator[Callable[[], Awaitable[Opened]]]:
    writers: list[asyncio.StreamWriter] = []
    async with port() as number:

        async def opening() -> Opened:
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writers.append(writer)
            return reader, writer

        yield opening
        for each in writers:
            each.close()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the connection is closed."""
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), PATIENCE_S)
    return b""


@pytest.mark.parametrize("begin", [b"", b"GET / HT", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nabc"])
async def test_a_request_that_does_not_end_is_ended(
    opened: Callable[[], Awaitable[Opened]], begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "REQUEST_S", 0.05)
    reader, writer = await opened()
    writer.write(begin)
    await ended(reader)


async def test_connections_have_a_limit(
    opened: Callable[[], Awaitable[Opened]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "CONNECTIONS_MAX", 1)
    reader, writer = await opened()
    writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    await asyncio.wait_for(reader.readuntil(b"200 OK"), PATIENCE_S)
    refused, _ = await opened()
    assert await ended(refused) == b""


async def test_a_forwarded_address_is_not_believed(opened: Callable[[], Awaitable[Opened]]) -> None:
    """Whoever could choose their address could guess secrets without a limit."""
    reader, writer = await opened()
    writer.write(b"GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 10.9.9.9\r\nconnection: close\r\n\r\n")
    answer = await ended(reader)
    assert b"127.0.0.1" in answer and b"10.9.9.9" not in answer


def test_forms_are_as_large_as_the_ports_requests() -> None:
    assert FORM_BYTES_MAX == BODY_BYTES_MAX
