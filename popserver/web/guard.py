"""The first check of every HTTP request: the host name that it was sent to."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from popport.addresses import is_own_name


class Guard:
    """Refuses requests that a browser was tricked into sending here.

    Paths for everybody are answered under any name, and `OPTIONS` on any path, because load balancers ask so.
    """

    def __init__(self, app: ASGIApp, *, is_local: bool, hosts: frozenset[str], for_everybody: Collection[str]) -> None:
        """`is_local`: only this machine can reach the port. `hosts`: its names."""
        self._app = app
        self._is_local = is_local
        self._hosts = hosts
        self._for_everybody = for_everybody

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host", "")
        is_foreign = self._is_local and not is_own_name(host, self._hosts)
        if scope["path"] in self._for_everybody:
            # A caller that uses a foreign name does not count as this machine, whose callers may read the reasons too.
            await self._app({**scope, "client": None} if is_foreign else scope, receive, send)
        elif is_foreign:
            await PlainTextResponse(f"{_FOREIGN.format(host)}\n", 421)(scope, receive, send)
        elif scope["method"] == "OPTIONS":
            await Response(status_code=204, headers={"allow": "GET, HEAD, OPTIONS, POST"})(scope, receive, send)
        else:
            await self._app(scope, receive, send)


_FOREIGN = (
    "this server listens for this machine only, and '{}' is no address of it; open http://127.0.0.1 or"
    " http://localhost, or allow the name: popmq serve --allow-host NAME"
)
