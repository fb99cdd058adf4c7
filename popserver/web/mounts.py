"""What other packages serve on the HTTP port, such as the console.

A package names itself as an entry point of the group `popmq.http`: an async context manager `(MountContext) → routes`.
It is entered at the first request that no other path answers, and left when the server stops. So a server does not load
a package that is never opened.

    [project.entry-points."popmq.http"]
    console = "popconsole.app:mounted"

    @asynccontextmanager
    async def mounted(context: MountContext) -> AsyncIterator[Sequence[BaseRoute]]:
        async with Admin(context.endpoint) as admin:
            yield [Route("/", overview), …]
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple

import structlog
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Router
from starlette.types import Receive, Scope, Send

from popserver.transport.listen import Mode

if TYPE_CHECKING:
    from popserver.front.certificate import Certificate

GROUP = "popmq.http"

log = structlog.get_logger("popserver.web")


class MountContext(NamedTuple):
    """The server that a package is mounted in."""

    endpoint: str  # `HOST:PORT` of its administration over gRPC, which this machine can connect to
    tls: Mode
    must_sign: bool  # whether callers of the gRPC port must sign
    version: str
    hosts: frozenset[str] = frozenset()  # names of the HTTP port besides localhost and addresses, in lower case
    needs_certificate: bool = False  # whether callers of the gRPC port must show one
    certificate: Certificate | None = None  # the one that packages may show there


Mount = Callable[[MountContext], AbstractAsyncContextManager[Sequence[BaseRoute]]]


def installed() -> list[metadata.EntryPoint]:
    """What packages of this installation serve."""
    return sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name)


class Mounts:
    """An ASGI application: the routes of all packages, and a page that lists the server's own paths."""

    def __init__(self, context: MountContext, entries: Sequence[metadata.EntryPoint], own_paths: Sequence[str]) -> None:
        self._context = context
        self._entries = entries
        self._own_paths = own_paths
        self._stack = AsyncExitStack()
        self._router: Router | None = None
        self._entering = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._router is None:
            async with self._entering:
                if self._router is None:
                    self._router = await self._enter()
        scope["router"] = self._router  # where `request.url_for` looks routes up
        await self._router(scope, receive, send)

    async def close(self) -> None:
        await self._stack.aclose()

    async def _enter(self) -> Router:
        routes: list[BaseRoute] = []
        for entry in self._entries:
            try:
                # In a thread, because the event loop must not wait for imports.
                mount: Mount = await asyncio.to_thread(entry.load)
                routes += await self._stack.enter_async_context(mount(self._context))
            except Exception:  # noqa: BLE001 - the rest of the server goes on
                log.error("not served over HTTP", package=entry.name, exception=traceback.format_exc())
        return Router(routes, default=self._not_found)

    async def _not_found(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = ", ".join(self._own_paths)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path == "/":
            answer = PlainTextResponse(f"PopMQ {self._context.version}: {known}\n")
        else:
            answer = PlainTextResponse(f"there is no {path}; this server has {known}\n", 404)
        await answer(scope, receive, send)
