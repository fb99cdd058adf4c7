"""A network line between two programs of a test: bytes go through until it is cut, and then nothing goes.

As behind a switch without power, both ends keep their connections and hear nothing. Lines run in a thread of their own,
because the test may block its event loop.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

_CHUNK = 65_536


class Lines:
    """The thread of some lines."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lines: list[Line] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="lines", daemon=True)
        self._thread.start()

    def to(self, port: int) -> Line:
        """A new line to this port."""
        line = Line(port, self._loop)
        asyncio.run_coroutine_threadsafe(line.start(), self._loop).result()
        self._lines.append(line)
        return line

    def close(self) -> None:
        async def end() -> None:
            for line in self._lines:
                line.close()
            running = asyncio.all_tasks() - {asyncio.current_task()}
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for _ in range(3):  # what was aborted is closed in the next turns
                await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Line:
    """Forwards connections of a port of its own to another one."""

    def __init__(self, target: int, loop: asyncio.AbstractEventLoop) -> None:
        self._target = target
        self._loop = loop
        self._open = asyncio.Event()
        self._open.set()
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        self._server.close()

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._open.clear)

    def mend(self) -> None:
        """What was sent meanwhile goes on."""
        self._loop.call_soon_threadsafe(self._open.set)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            await self._open.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            ends.append(far_writer)
            async with asyncio.TaskGroup() as both:
                there = both.create_task(self._forward(reader, far_writer))
                back = both.create_task(self._forward(far_reader, writer))
                await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
                there.cancel()
                back.cancel()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for end in ends:
                end.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
