"""The heartbeats of a client, what it does with each so many of them, and its goodbye."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

import grpc

from popclient._session.routes import Routes
from popclient._session.statuses import is_unsaid, translated
from popclient._session.stream import MayBreak
from popclient._session.transport import FORGOTTEN_AFTER, Transport
from popclient._version import log
from popclient.errors import PopError, Unreachable
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc

HEARTBEAT_INTERVAL: Final = 10.0
UNANSWERED_PAUSE: Final = 2.0  # seconds after a heartbeat that no server has answered
BEATS_PER_ROUTE_REFRESH: Final = 3  # 30 s (requirement N2)
BEATS_PER_SETTINGS: Final = 30  # 5 min, as the official clients do


class Heartbeats:
    """request: the same each time. send_settings: sends the settings of the client again. leave_stream: called once
    when no server has answered for so long that it has forgotten the client."""

    def __init__(
        self,
        transport: Transport,
        routes: Routes,
        request: rpc.HeartbeatRequest,
        timeout: float,
        send_settings: Callable[[], Awaitable[None]],
        leave_stream: Callable[[str], None],
    ) -> None:
        self._transport = transport
        self._routes = routes
        self._request = request
        self._timeout = timeout
        self._send_settings = send_settings
        self._leave_stream = leave_stream
        self._is_answered = True
        self._is_silent = False

    async def keep(self, who: str) -> None:
        """Until cancelled. who: for the log."""
        answered = 0
        while True:
            await asyncio.sleep(HEARTBEAT_INTERVAL if self._is_answered else UNANSWERED_PAUSE)
            try:
                await self.send()
                if self._is_answered:
                    answered += 1
                    await self._answered(answered)
            except Exception:  # noqa: BLE001  one failed heartbeat must not end the others
                log.exception("a heartbeat of %s failed; the next one follows", who)

    async def _answered(self, beat: int) -> None:
        if beat % BEATS_PER_ROUTE_REFRESH == 0:
            await self._routes.refresh_all()
        if beat % BEATS_PER_SETTINGS == 0:
            await self._send_settings()

    async def reason_of(self, code: grpc.StatusCode, details: str) -> PopError:
        """Why a stream has ended. If gRPC's library does not say it, a heartbeat tells."""
        if is_unsaid(details):
            try:
                await self._ask()
            except PopError as failure:
                # It is kept, and its frames would keep the stream, and so the connection of a closed client.
                failure.__context__ = None
                return failure.with_traceback(None)
        return translated(code, details)

    async def _ask(self) -> rpc.HeartbeatResponse:
        return await self._transport.unary(lambda link: link.messaging.Heartbeat, self._request, self._timeout)

    async def send(self) -> None:
        try:
            answer = await self._ask()
        except Unreachable as failure:
            log.debug("heartbeat failed: %s", failure)
            self._unanswered()
            return
        except PopError as failure:
            log.debug("heartbeat failed: %s", failure)
        else:
            if answer.status.code == pb.UNRECOGNIZED_CLIENT_TYPE:  # the server has forgotten us
                await self._send_settings()
        self._is_answered, self._is_silent = True, False

    def _unanswered(self) -> None:
        self._is_answered = False
        if self._transport.is_silent and not self._is_silent:
            self._is_silent = True
            self._transport.on_silence()
            self._leave_stream(f"{self._transport.where} has not answered for {FORGOTTEN_AFTER:g} s")
            self._transport.turn()


async def say_goodbye(
    transport: Transport,
    group: pb.Resource | None,
    patience: float,
    stream: grpc.aio.StreamStreamCall[rpc.TelemetryCommand, rpc.TelemetryCommand] | None,
) -> None:
    with contextlib.suppress(PopError):
        request = rpc.NotifyClientTerminationRequest(group=group)
        await transport.unary(lambda link: link.messaging.NotifyClientTermination, request, patience)
    if stream is not None:
        # gRPC waits for the write without end, such as behind a connection that takes no more bytes.
        with MayBreak(), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await stream.done_writing()
