"""A TCP proxy before a server that does what bad networks do: delay, dribble, cut, reset, half-close."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from contextlib import suppress
from enum import StrEnum
from typing import Self

_CHUNK = 65_536
_LINGER_ZERO = struct.pack("ii", 1, 0)


class Fault(StrEnum):
    DELAY = "delay"  # each piece waits up to 100 ms
    DRIBBLE = "dribble"  # a few bytes at a time
    CUT = "cut"  # nothing goes on in either direction, and nobody is told; at the end the connections are reset
    RESET = "reset"  # all connections end at once with an RST
    HALF_CLOSE = "half_close"  # servers' ends are told that no more requests come; answers still go through


class FaultyProxy:
    """Forwards bytes to one server; a fault lasts until it is mended. New connections always go to the server."""

    def __init__(self, target: str, seed: int = 0) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._chance = random.Random(seed)
        self._fault: Fault | None = None
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self._ends: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}  # near end: far end
        self._tasks: set[asyncio.Task[None]] = set()
        self.endpoint = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.endpoint = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._server.close()
        self._goes_on.set()
        self._reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def break_by(self, fault: Fault) -> None:
        self._fault = fault
        match fault:
            case Fault.CUT:
                self._goes_on.clear()
            case Fault.RESET:
                self._reset()
            case Fault.HALF_CLOSE:
                for far in self._ends.values():
                    with suppress(OSError):
                        far.write_eof()

    def mend(self) -> None:
        """What was cut is reset, as by a router that starts anew."""
        if self._fault in {Fault.CUT, Fault.HALF_CLOSE}:
            self._reset()
        self._fault = None
        self._goes_on.set()

    def _reset(self) -> None:
        for pair in list(self._ends.items()):
            for end in pair:
                _abort(end)

    async def _accepted(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._join(reader, near)
        except asyncio.CancelledError:  # the proxy is closed; asyncio would log it
            pass
        finally:
            self._tasks.discard(task)
            near.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        try:
            far_reader, far = await asyncio.open_connection(*self._target)
        except OSError:  # the server is down: refused
            _abort(near)
            return
        self._ends[near] = far
        try:
            both = [
                asyncio.ensure_future(self._forward(reader, far)),
                asyncio.ensure_future(self._forward(far_reader, near)),
            ]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in both:
                    each.cancel()
                await asyncio.gather(*both, return_exceptions=True)
        finally:
            del self._ends[near]
            far.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, RuntimeError):  # RuntimeError: written after a half-close
            while data := await reader.read(_CHUNK):
                await self._goes_on.wait()
                if self._fault is Fault.DELAY:
                    await asyncio.sleep(self._chance.uniform(0, 0.1))
                if self._fault is Fault.DRIBBLE:
                    await self._dribble(data, writer)
                    continue
                writer.write(data)
                await writer.drain()

    async def _dribble(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        at = 0
        while at < len(data):
            # The rest goes at once when the fault is over.
            size = self._chance.randint(1, 700) if self._fault is Fault.DRIBBLE else len(data)
            writer.write(data[at : at + size])
            await writer.drain()
            at += size
            await asyncio.sleep(0)


def _abort(end: asyncio.StreamWriter) -> None:
    """End the connection with an RST, as SO_LINGER of 0 s does."""
    sock = end.get_extra_info("socket")
    with suppress(OSError):
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    end.transport.abort()
