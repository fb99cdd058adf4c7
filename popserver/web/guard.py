"""What every HTTP request passes first: the name that it was sent to, and the size of its body."""

from __future__ import annotations

import ipaddress

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from popserver.model.budget import Budget

BODY_BYTES_MAX = 1024 * 1024
BODY_BYTES_EACH = 64 * 1024  # of all requests at one time, for each connection that is allowed


class Guard:
    """Refuses requests that are too large, or that a browser was tricked into sending here."""

    def __init__(self, app: ASGIApp, bodies: Budget, *, is_local: bool, hosts: frozenset[str]) -> None:
        """`bodies`: the bytes of all bodies. `is_local`: only this machine can reach the port. `hosts`: its names."""
        self._app = app
        self._bodies = bodies
        self._is_local = is_local
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if self._is_local and not is_own_name(headers.get("host", ""), self._hosts):
            await _refuse(scope, receive, send, 421, _FOREIGN.format(headers.get("host", "")))
            return
        if "transfer-encoding" not in headers and headers.get("content-length", "0") == "0":
            await self._app(scope, receive, send)
            return
        size = int(headers.get("content-length", 0))  # the HTTP library has checked that it is a number
        if size > BODY_BYTES_MAX:
            await _refuse(scope, receive, send, 413, _too_large(size))
        else:
            await self._read_and_pass_on(scope, receive, send)

    async def _read_and_pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Only bytes that have arrived take room, so that who announces many and sends none keeps nobody out."""
        body = bytearray()
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
                part = message.get("body", b"")
                if len(body) + len(part) > BODY_BYTES_MAX:
                    await _refuse(scope, receive, send, 413, _too_large(len(body) + len(part)))
                    return
                if not self._bodies.take(len(part)):
                    refusal = self._bodies.refusal(f"{len(part)} bytes of a request")
                    await _refuse(scope, receive, send, 503, refusal.sentence)
                    return
                body += part
                if not message.get("more_body", False):
                    break
            await self._pass_on(bytes(body), scope, receive, send)
        finally:
            self._bodies.give_back(len(body))

    async def _pass_on(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, receive_again, send)


def is_own_name(host: str, allowed: frozenset[str]) -> bool:
    """Whether a Host header names this machine by an address, as localhost, or by an allowed name.

    A page on the internet can let its own name point to 127.0.0.1, and a browser then lets it read the answers. Such a
    request has the page's name in the header.
    """
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    name = name.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost") or name in allowed:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, sentence: str) -> None:
    await PlainTextResponse(f"{sentence}\n", status)(scope, receive, send)


def _too_large(size: int) -> str:
    return f"the request has {size} bytes or more; at most {BODY_BYTES_MAX} are allowed"


_FOREIGN = (
    "this server listens for this machine only, and '{}' is no address of it; open http://127.0.0.1 or"
    " http://localhost, or allow the name: popmq serve --allow-host NAME"
)
