"""A port whose connections all end with it.

`asyncio.Server.close` leaves open what it accepted (until Python 3.12 it does not even know it). A connection that came
in the last moment would then be found unclosed by the garbage collector, in some later test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Self

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

ACCEPT_TURNS = 3  # of the event loop; asyncio needs two from accept() to the callback, and tells nobody in between


class AcceptingPort:
    """A port of 127.0.0.1; each of its connections is served by a task, and closed when that ends."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._served_now: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.port = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def start(self) -> None:
        # A plain function, so that each task is known before its first step.
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Break all connections, and wait until they are closed."""
        for each in self._server.sockets:
            asyncio.get_running_loop().remove_reader(each)
        for _ in range(ACCEPT_TURNS):  # a server that is closed in the midst of accepting loses the socket
            await asyncio.sleep(0)
        self._server.close()
        still_open = dict(self._served_now)
        for task in still_open:
            task.cancel()
        await asyncio.gather(*still_open, return_exceptions=True)
        await asyncio.gather(*(each.wait_closed() for each in still_open.values()), return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._served(reader, writer))
        self._served_now[task] = writer
        # Not in a `finally` of the task, which does not run if it is cancelled before its first step.
        task.add_done_callback(self._break)

    async def _served(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await self._serve(reader, writer)

    def _break(self, task: asyncio.Task[None]) -> None:
        writer = self._served_now.pop(task)  # named: from Python 3.13 on, a writer that is collected first warns
        writer.transport.abort()


@asynccontextmanager
async def connection_to(host: str, port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that is broken at the end."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def until_one_ends(*halves: Awaitable[None]) -> None:
    """Both directions of a connection."""
    tasks = [asyncio.ensure_future(each) for each in halves]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
