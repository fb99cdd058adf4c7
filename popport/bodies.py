"""The bodies of HTTP requests: how large one may be, and how much room all of them have."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from popport.addresses import network_of
from popport.shares import Count, Shares

BODY_BYTES_MAX = 1024 * 1024
# The beginning of a body takes no room: the number of connections limits it. So nobody can keep small forms out.
BODY_BYTES_FREE = 64 * 1024
BODY_BYTES_EACH = 64 * 1024  # room for all requests at one time, for each connection that is allowed


def room_for(connections_max: int) -> int:
    """The bytes that the bodies of a port with so many connections may take."""
    return max(BODY_BYTES_MAX, connections_max * BODY_BYTES_EACH)


class Bodies:
    """An ASGI layer. It reads a request to its end before the application gets it, and refuses what is too large."""

    def __init__(self, app: ASGIApp, room: Count, way_out: str = "") -> None:
        """`room`: the bytes of all bodies; an address gets half. `way_out`: what else to do if there is no room."""
        self._app = app
        self._shares = Shares(room, max(BODY_BYTES_MAX, room.limit // 2))
        self._way_out = way_out

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if "transfer-encoding" not in headers and headers.get("content-length", "0") == "0":
            await self._app(scope, receive, send)
            return
        size = int(headers.get("content-length", 0))  # the HTTP library has checked that it is a number
        if size > BODY_BYTES_MAX:
            await _refuse(scope, receive, send, 413, _too_large(size))
        else:
            await self._read_and_pass_on(scope, receive, send)

    async def _read_and_pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Only bytes that have arrived count: declaring a large body reserves nothing."""
        body, taken = bytearray(), 0
        caller = network_of(scope["client"][0] if scope["client"] else "")
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
                body += message.get("body", b"")
                if len(body) > BODY_BYTES_MAX:
                    await _refuse(scope, receive, send, 413, _too_large(len(body)))
                    return
                more = max(0, len(body) - BODY_BYTES_FREE) - taken
                if not self._shares.take(caller, more):
                    await _refuse(scope, receive, send, 503, self._no_room(len(body)))
                    return
                taken += more
                if not message.get("more_body", False):
                    break
            await self._pass_on(bytes(body), scope, receive, send)
        finally:
            self._shares.give_back(caller, taken)

    async def _pass_on(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, receive_again, send)

    def _no_room(self, size: int) -> str:
        room = self._shares.budget
        return (
            f"no room for a request of {size} bytes or more: {room.used} of {room.limit} bytes are in use, and one"
            f" address may use {self._shares.share} of them; try again later{self._way_out}"
        )


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, sentence: str) -> None:
    await PlainTextResponse(f"{sentence}\n", status)(scope, receive, send)


def _too_large(size: int) -> str:
    return f"the request has {size} bytes or more; at most {BODY_BYTES_MAX} are allowed"
