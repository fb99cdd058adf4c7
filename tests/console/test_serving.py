"""The port of `popmq console`: what it takes from browsers, and what it believes."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from popconsole import serving
from popport import connections
from popport.bodies import BODY_BYTES_FREE, BODY_BYTES_MAX
from tests.support.http_client import PATIENCE_S


async def _address(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the caller's address."""
    if scope["type"] == "http":
        await PlainTextResponse(str(Request(scope).client))(scope, receive, send)


@contextlib.asynccontextmanager
async def port(application: ASGIApp = _address) -> AsyncIterator[int]:
    """The port of a console that serves the application."""
    server = serving.server_of(application)
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
    monkeypatch.setattr(connections, "REQUEST_S", 0.05)
    reader, writer = await opened()
    writer.write(begin)
    await ended(reader)


async def test_an_address_has_half_of_the_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "CONNECTIONS_MAX", 2)
    async with port() as number:
        idle = await connected(number, "127.0.0.2")
        refused = await connected(number, "127.0.0.2")
        assert await ended(refused[0]) == b""
        others = [await connected(number, f"127.0.0.{each}") for each in (3, 4)]
        # The port is full, and the last one got the place of the oldest.
        assert await ended(idle[0]) == b""
        for _, writer in [idle, refused, *others]:
            writer.close()


async def test_who_stalls_in_large_forms_keeps_no_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "CONNECTIONS_MAX", 16)  # room for one form of the largest size
    async with port(_length) as number:
        stalled = [await connected(number, "127.0.0.2") for _ in range(2)]
        for _, writer in stalled:
            writer.write(head(BODY_BYTES_MAX) + bytes(BODY_BYTES_MAX - 1))
        answers = [asyncio.create_task(reader.readline()) for reader, _ in stalled]
        first = await next(asyncio.as_completed(answers, timeout=PATIENCE_S))
        assert b"503" in first  # there is no more room
        reader, writer = await connected(number, "127.0.0.3")
        writer.write(head(BODY_BYTES_FREE) + bytes(BODY_BYTES_FREE))
        assert (await ended(reader)).endswith(str(BODY_BYTES_FREE).encode())
        for _, each in [*stalled, (reader, writer)]:
            each.close()
        await asyncio.wait(answers)


def head(size: int) -> bytes:
    return f"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {size}\r\n\r\n".encode()


async def _length(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the number of bytes of the request."""
    if scope["type"] == "http":
        await PlainTextResponse(str(len(await Request(scope, receive).body())))(scope, receive, send)


async def connected(number: int, host: str) -> Opened:
    return await asyncio.open_connection("127.0.0.1", number, local_addr=(host, 0))


async def test_a_forwarded_address_is_not_believed(opened: Callable[[], Awaitable[Opened]]) -> None:
    """Whoever could choose their address could guess secrets without a limit."""
    reader, writer = await opened()
    writer.write(b"GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 10.9.9.9\r\nconnection: close\r\n\r\n")
    answer = await ended(reader)
    assert b"127.0.0.1" in answer and b"10.9.9.9" not in answer


def test_no_other_command_loads_the_console() -> None:
    heavy = "{'starlette', 'jinja2', 'uvicorn', 'rich', 'sqlalchemy'}"
    script = f"import sys; from popclient import cli; cli.parser(); print(*sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "\n"
