"""A line between a server and Postgres that can be cut at a COMMIT, on either side of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum, auto

from sqlalchemy.engine import make_url

from tests.support.accepting import AcceptingPort, connection_to, until_one_ends

_CHUNK = 65_536
_PREPARED = re.compile(rb"(_pg3_\d+)\0COMMIT\0")


class Cut(Enum):
    BEFORE = auto()  # the COMMIT never gets there
    AFTER = auto()  # it takes effect, and its answer is lost


class CommitProxy(AcceptingPort):
    """Forwards bytes; `cut_next` breaks the connection that carries the next COMMIT. New connections go through."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(self._join)
        self._target = (host, port)
        self._next: Cut | None = None
        self.has_cut = asyncio.Event()

    def cut_next(self, where: Cut) -> None:
        self._next = where
        self.has_cut.clear()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either end closes it or it is cut."""
        answer_is_lost = asyncio.Event()
        async with connection_to(*self._target) as (far_reader, far_writer):
            await until_one_ends(
                self._there(reader, far_writer, answer_is_lost), _back(far_reader, writer, answer_is_lost)
            )

    async def _there(
        self, reader: asyncio.StreamReader, far_writer: asyncio.StreamWriter, answer_is_lost: asyncio.Event
    ) -> None:
        # After a few uses the driver prepares its COMMIT, and from then on sends the name alone.
        marks = {b"COMMIT"}
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
    while data := await far_reader.read(_CHUNK):
        if answer_is_lost.is_set():
            return
        writer.write(data)
        await writer.drain()


@asynccontextmanager
async def line_to(database_url: str) -> AsyncIterator[tuple[CommitProxy, str]]:
    """The line, and the database's URL through it."""
    url = make_url(database_url)
    assert url.host is not None
    assert url.port is not None
    async with CommitProxy(url.host, url.port) as line:
        yield line, url.set(port=line.port).render_as_string(hide_password=False)
