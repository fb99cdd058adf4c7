"""A network line between two programs of a test: bytes go through until it is cut, and then nothing goes.

As behind a switch without power, both ends keep their connections and hear nothing. Lines run in a thread of their own,
because the test may block its event loop.
"""

from __future__ import annotations

import asyncio
import threading

from tests.support.accepting import AcceptingPort, connection_to, until_one_ends

_CHUNK = 65_536


class TcpRelays:
    """The thread of some lines."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lines: list[TcpRelay] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="lines", daemon=True)
        self._thread.start()

    def to(self, port: int) -> TcpRelay:
        """A new line to this port."""
        line = TcpRelay(port, self._loop)
        asyncio.run_coroutine_threadsafe(line.start(), self._loop).result()
        self._lines.append(line)
        return line

    def close(self) -> None:
        for line in self._lines:
            asyncio.run_coroutine_threadsafe(line.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class TcpRelay(AcceptingPort):
    """Forwards connections of a port of its own to another one."""

    def __init__(self, target: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(self._join)
        self._target = target
        self._loop = loop
        self._open = asyncio.Event()
        self._open.set()

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._open.clear)

    def mend(self) -> None:
        """What was sent meanwhile goes on."""
        self._loop.call_soon_threadsafe(self._open.set)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        async with connection_to("127.0.0.1", self._target) as (far_reader, far_writer):
            await until_one_ends(self._forward(reader, far_writer), self._forward(far_reader, writer))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            await self._open.wait()
            writer.write(data)
            await writer.drain()
