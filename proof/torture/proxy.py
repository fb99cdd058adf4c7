"""A TCP proxy before a server that does what bad networks do: delay, dribble, cut, reset, half-close.

It is our own, because toxiproxy needs a Go toolchain and has no half-close.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from contextlib import suppress
from enum import StrEnum

from tests.support.accepting import AcceptingPort, connection_to, until_one_ends

_CHUNK = 65_536
_LINGER_ZERO = struct.pack("ii", 1, 0)


class Fault(StrEnum):
    DELAY = "delay"  # each piece waits up to 100 ms
    DRIBBLE = "dribble"  # a few bytes at a time
    CUT = "cut"  # nothing goes on in either direction, and nobody is told; at the end the connections are reset
    RESET = "reset"  # all connections end at once with an RST
    HALF_CLOSE = "half_close"  # servers' ends are told that no more requests come; answers still go through


class FaultyProxy(AcceptingPort):
    """Forwards bytes to one server; a fault lasts until it is mended. New connections always go to the server."""

    def __init__(self, target: str, seed: int = 0) -> None:
        super().__init__(self._join)
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._chance = random.Random(seed)
        self._fault: Fault | None = None
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self._ends: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}  # near end: far end

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aexit__(self, *_error: object) -> None:
        self._reset()
        await self.close()

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

    async def _join(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        try:
            async with connection_to(*self._target) as (far_reader, far):
                self._ends[near] = far
                await until_one_ends(self._forward(reader, far), self._forward(far_reader, near))
        except ConnectionRefusedError:  # the server is down
            _abort(near)
        finally:
            self._ends.pop(near, None)

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
