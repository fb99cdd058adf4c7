"""A peer on a TCP port that answers frames as a test says: for what a real RocketMQ does not do on demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from popclient.remoting.frames import PREFIX_BYTES, Frame, decode, encode, length_of

# From a request to the bytes that go back; None: it closes the connection; empty: it stays silent.
Reply = Callable[[Frame], bytes | None]


class Peer:
    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.asked: list[Frame] = []
        self.connections = 0
        self._open: set[asyncio.StreamWriter] = set()
        self.address = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            while True:
                request = decode(await reader.readexactly(length_of(await reader.readexactly(PREFIX_BYTES))))
                self.asked.append(request)
                back = self.reply(request)
                if back is None:
                    return
                writer.write(back)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._open.discard(writer)
            writer.close()

    def cut(self) -> None:
        """Ends all connections, as a server does that is idle."""
        for writer in self._open:
            writer.close()


@asynccontextmanager
async def peer(reply: Reply) -> AsyncIterator[Peer]:
    made = Peer(reply)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    made.address = f"{host}:{port}"
    try:
        yield made
    finally:
        server.close()
        made.cut()


def answer(
    request: Frame, document: Any = None, *, code: int = 0, remark: str = "", fields: Mapping[str, str] | None = None
) -> bytes:
    """document: what the body says, in JSON; bytes as they are."""
    body = document if isinstance(document, bytes) else b"" if document is None else json.dumps(document).encode()
    return encode(Frame(code, request.opaque, fields or {}, body, is_answer=True, remark=remark))
