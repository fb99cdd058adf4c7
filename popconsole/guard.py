"""What every request has to pass, and what every answer carries: no other site may use the console or frame it.

A page on another site can make a browser send requests to a loopback address under a name of its own (DNS rebinding).
So a request must name the console by an IP address, by localhost, or by a name that its operator allowed.
"""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from popconsole.settings import Settings
from popport.addresses import is_own_name, name_of

SAFE: Final = frozenset({"GET", "HEAD"})
POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    ]
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-popmq-console": "1",  # a page's script takes no other answer for one of the console
}


class Guard:
    """An ASGI layer around the console."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._hosts = settings.hosts
        self._any_host = settings.any_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope["method"], Headers(scope=scope))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        if refusal is not None:
            await PlainTextResponse(refusal, 403)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    def _refusal(self, method: str, headers: Headers) -> str | None:
        """Why the request may not pass; None if it may."""
        host = headers.get("host", "")
        if not (self._any_host or is_own_name(host, self._hosts)):
            return (
                f"This console is not called {name_of(host)[:100]!r}. Use its IP address or localhost, or allow the"
                " name with --allow-host NAME, which popmq serve and popmq console have.\n"
            )
        if method in SAFE:
            return None
        origin = headers.get("origin")
        # A proxy may send a Host of its own; the browser's Origin then has the name that the operator allowed.
        if origin is not None and _host_of(origin) != host and name_of(_host_of(origin)) not in self._hosts:
            return (
                f"A page of {origin[:100]!r} may not change anything here. If that is this console behind a proxy,"
                " allow its name with --allow-host NAME.\n"
            )
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return "A page of another site may not change anything here.\n"
        return None


def _host_of(origin: str) -> str:
    return origin.partition("://")[2]
