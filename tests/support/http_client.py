"""A plain HTTP client, over a socket of its own for each request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

PATIENCE_S = 30.0


class HttpAnswer(NamedTuple):
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def document(self) -> Any:
        return json.loads(self.body)


async def get(address: str, path: str, **headers: str) -> HttpAnswer:
    """The answer to a GET. Underscores in names of headers stand for hyphens."""
    return await ask(address, f"GET {path} HTTP/1.1", headers)


async def ask(address: str, first_line: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> HttpAnswer:
    """The answer to one request; `Host` is the address unless the headers have one."""
    named = {"host": address, "connection": "close"} | {
        name.replace("_", "-"): value for name, value in (headers or {}).items()
    }
    lines = "\r\n".join([first_line, *(f"{name}: {value}" for name, value in named.items()), "", ""])
    reader, writer = await connect(address)
    writer.write(lines.encode() + body)
    return await answer(reader, writer)


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host.strip("[]"), int(port), limit=1 << 26)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> HttpAnswer:
    """Read an answer up to the end of the connection."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            body = await _chunked(reader) if "transfer-encoding" in headers else await reader.read()
    finally:
        writer.close()
    return HttpAnswer(int(head[0].split()[1]), headers, body)


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    return bytes(body)
