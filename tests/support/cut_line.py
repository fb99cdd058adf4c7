"""A line between a server and Postgres that can be cut at a COMMIT, on either side of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import Enum, auto

from sqlalchemy.engine import make_url

_CHUNK = 65_536
_PREPARED = re.compile(rb"(_pg3_\d+)\0COMMIT\0")


class Cut(Enum):
    BEFORE = auto()  # the COMMIT never gets there
    AFTER = auto()  # it takes effect, and its answer is lost


class CutLine:
    """Forwards bytes; `cut_next` breaks the connection that carries the next COMMIT. New connections go through."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._next: Cut | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.has_cut = asyncio.Event()

    def cut_next(self, where: Cut) -> None:
        self._next = where
        self.has_cut.clear()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either end closes it or it is cut."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ends = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            ends.append(far_writer)
            answer_is_lost = asyncio.Event()
            async with asyncio.TaskGroup() as both:
                there = both.create_task(self._there(reader, far_writer, answer_is_lost))
                back = both.create_task(_back(far_reader, writer, answer_is_lost))
                await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
                there.cancel()
                back.cancel()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for end in ends:
                end.transport.abort()

    async def close(self) -> None:
        """Break all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks)
        for _ in range(3):  # what was aborted is closed in the next turns
            await asyncio.sleep(0)

    async def _there(
        self, reader: asyncio.StreamReader, far_writer: asyncio.StreamWriter, answer_is_lost: asyncio.Event
    ) -> None:
        # After a few uses the driver prepares its COMMIT, and from then on sends the name alone.
        marks = {b"COMMIT"}
        with suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                marks |= {name + b"\0" for name in _PREPARED.findall(data)}
                if self._next is not None and any(mark in data for mark in marks):
                    where, self._next = self._next, None
                    self.has_cut.set()
                    if where is Cut.BEFORE:
                        return
                    answer_is_lost.set()
                far_writer.write(data)
                await far_writer.drain()


async def _back(far_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer_is_lost: asyncio.Event) -> None:
    with suppress(ConnectionError):
        while data := await far_reader.read(_CHUNK):
            if answer_is_lost.is_set():
                return
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def line_to(database_url: str) -> AsyncIterator[tuple[CutLine, str]]:
    """The line, and the database's URL through it."""
    url = make_url(database_url)
    assert url.host is not None
    assert url.port is not None
    line = CutLine(url.host, url.port)
    listening = await asyncio.start_server(line.forward, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield line, url.set(port=port).render_as_string(hide_password=False)
    finally:
        listening.close()
        await line.close()
