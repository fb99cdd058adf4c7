"""A call of gRPC's library: `transport.call.Call` for its handler.

The library hands over a request when all of it has arrived. So its size is known only then, and `grant` has nothing to
do. Of the connection of a call it reports only the address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import ClassVar
from urllib.parse import unquote

import grpc
import structlog

from popserver.transport.call import Encodable, EndCode, EndStatus, Handler

PEERS_REMEMBERED_MAX = 4_096
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}

Context = grpc.aio.ServicerContext[bytes, Encodable]

log = structlog.get_logger("popserver.grpcio")


class GrpcioCall:
    """One call."""

    Disconnected: ClassVar[type[Exception]] = grpc.aio.BaseError

    def __init__(self, context: Context, hang_up: Callable[[str], None]) -> None:
        """`hang_up` closes the connection of a client's `HOST:PORT`."""
        self.headers: dict[str, str | bytes] = dict(context.invocation_metadata() or ())
        self.is_cancelled = False
        self._context = context
        self._hang_up = hang_up
        self._request: bytes | None = None  # has arrived, and is not taken yet
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[object] | None = None
        self._is_stopped = False

    @property
    def peer(self) -> str:
        return _address(self._context.peer())

    def remaining_ms(self) -> int | None:
        remaining_s = self._context.time_remaining()
        return None if remaining_s is None else int(remaining_s * 1_000)

    def take(self) -> bytes | None:
        request, self._request = self._request, None
        return request

    async def next_size(self) -> int | None:
        if self._request is None:
            read: bytes | object = await self._context.read()
            if not isinstance(read, bytes):
                return None
            self._request = read
        return len(self._request)

    def grant(self) -> None:
        """The request is there."""

    async def next(self) -> bytes | None:
        return self.take()

    def signed(self) -> None:
        """Nothing: this door closes no connection for another."""

    def hang_up(self, why: str) -> None:
        log.debug("connection closed", peer=self.peer, reason=why)
        self.is_cancelled = True
        self._hang_up(self.peer)

    async def send_headers(self) -> None:
        await self._context.send_initial_metadata(())

    async def write(self, frame: Encodable) -> None:
        async with self._writing:  # the library writes one frame at a time
            await self._context.write(frame)

    def end(self, status: EndStatus) -> None:
        self._context.set_code(_CODES[status.code])
        self._context.set_details(status.sentence)

    def on_end(self, callback: Callable[[], None]) -> None:
        self._context.add_done_callback(lambda _: callback())  # type: ignore[arg-type]

    # For the door.

    async def run(self, handler: Handler) -> Encodable | None:
        """Run the handler; returns its answer."""
        self._task = asyncio.current_task()
        try:
            answer = await handler(self)
            if not self.is_cancelled:
                return answer
            raise asyncio.CancelledError  # which the library takes quietly
        except asyncio.CancelledError:
            if not self._is_stopped:
                self.is_cancelled = True
                raise
        except grpc.aio.BaseError:
            self.is_cancelled = True
            raise asyncio.CancelledError from None
        except Exception as error:  # noqa: BLE001
            log.error("call failed", peer=self.peer, reason=type(error).__name__)
            self.end(EndStatus(EndCode.INTERNAL, "the server failed on this call"))
        return None

    def stop(self) -> None:
        """End the call and its handler, because the server stops."""
        if self._task is not None and not self._is_stopped:
            self._is_stopped = True
            self.end(EndStatus(EndCode.UNAVAILABLE, "the server is stopping; try another server, or this one later"))
            self._task.cancel()


@lru_cache(PEERS_REMEMBERED_MAX)
def _address(peer: str) -> str:
    """`HOST:PORT` of what the library calls ipv4:127.0.0.1:5 or ipv6:%5B::1%5D:5."""
    return unquote(peer.partition(":")[2])
