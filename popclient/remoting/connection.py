"""A connection to a name server or broker of RocketMQ: one request at a time, each with its time limit."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from typing import Final

from popclient.errors import PopError, UnexpectedAnswer, Unreachable
from popclient.remoting.errors import refusal
from popclient.remoting.frames import OPAQUE_MAX, PREFIX_BYTES, Frame, MalformedFrame, decode, encode, length_of
from popclient.remoting.requests import RemotingRequest
from popclient.remoting.signatures import AccessKey

_WAY_OUT: Final = (
    "give the address of a RocketMQ name server or broker (ports 9876 and 10911), not that of a proxy for gRPC (8081), "
    "and not one that speaks TLS alone"
)
_OTHERS_MAX: Final = 100  # frames before an answer that are none


class RemotingConnection:
    """Opens itself for the first request, and again after a failure. Not for several tasks at once: they wait."""

    def __init__(self, address: str, credentials: AccessKey = AccessKey(), timeout: float = 5.0) -> None:  # noqa: B008 - a value
        """address: host:port. timeout: seconds for one request, with the time to connect."""
        self.address = address
        self._host, self._port = _host_and_port(address)
        self._credentials = credentials
        self._timeout = timeout
        self._numbers = itertools.cycle(range(1, OPAQUE_MAX))
        self._one_at_a_time = asyncio.Lock()
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, request: RemotingRequest) -> Frame:
        """The answer.

        Raises RefusedByBroker if it says no, Unreachable if nobody answers in time, UnexpectedAnswer for an answer that
        is none.
        """
        async with self._one_at_a_time:
            answer = await self._call(request)
        if answer.code != 0:
            raise refusal(self.address, request.what, answer.code, answer.remark)
        return answer

    async def close(self) -> None:
        """Waits until the connection is closed."""
        opened, self._open = self._open, None
        if opened is not None:
            opened[1].close()
            with suppress(OSError):
                await opened[1].wait_closed()

    async def _call(self, request: RemotingRequest) -> Frame:
        try:
            async with asyncio.timeout(self._timeout):
                return await self._exchange(request)
        except BaseException as failure:
            self._abort()  # a late answer must not be taken for that of the next request
            reason = self._reason(failure)
            if reason is None:
                raise
            raise reason from None

    async def _exchange(self, request: RemotingRequest) -> Frame:
        reader, writer = await self._opened()
        number = next(self._numbers)
        fields = self._credentials.signed(request.fields, request.body)
        writer.write(encode(Frame(request.code, number, fields, request.body)))
        await writer.drain()
        for _ in range(_OTHERS_MAX):
            frame = decode(await reader.readexactly(length_of(await reader.readexactly(PREFIX_BYTES))))
            if frame.is_answer:
                if frame.opaque != number:
                    raise MalformedFrame(f"an answer has the number {frame.opaque}, its request {number}")
                return frame
        raise MalformedFrame(f"{_OTHERS_MAX} frames came, and none is an answer")

    async def _opened(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._open is not None and (self._open[0].at_eof() or self._open[0].exception() is not None):
            self._abort()  # servers close a connection that is idle for two minutes
        if self._open is None:
            self._open = await asyncio.open_connection(self._host, self._port)
        return self._open

    def _reason(self, failure: BaseException) -> PopError | None:
        """What a caller is told; None: the failure itself."""
        if isinstance(failure, MalformedFrame):
            return UnexpectedAnswer(
                f"{self.address} does not speak RocketMQ's remoting protocol: {failure}; {_WAY_OUT}"
            )
        if isinstance(failure, asyncio.IncompleteReadError):
            return Unreachable(f"{self.address} closed the connection before its answer; {_WAY_OUT}")
        if isinstance(failure, TimeoutError):
            limit = f"within {self._timeout:g} s"
            return Unreachable(f"{self.address} did not answer {limit}; repeat it, or {_WAY_OUT}")
        if isinstance(failure, OSError):
            return Unreachable(f"{self.address} cannot be reached: {failure.strerror or failure}; {_WAY_OUT}")
        return None

    def _abort(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened[1].transport.abort()


def _host_and_port(address: str) -> tuple[str, int]:
    """Raises ValueError."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ValueError(f"address is {address!r}; it must be host:port, such as 127.0.0.1:9876")
    return host, int(port)
