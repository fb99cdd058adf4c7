"""The console as a Starlette application: its addresses, and what answers them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from popclient.config import ClientConfig, Tls
from popconsole.desk import Desk
from popconsole.guard import Guard
from popconsole.pages import (
    dead_letters,
    groups,
    lite_topics,
    messages,
    mirrors,
    overview,
    redrives,
    server,
    topics,
    users,
)
from popconsole.pages.sign_in import SignIn
from popconsole.rendering import STATIC
from popconsole.settings import Settings
from popconsole.visits import Page


class KeptFiles(StaticFiles):
    """Files that a browser may keep: their addresses change with their content."""

    def file_response(self, *given: Any, **named: Any) -> Response:
        response = super().file_response(*given, **named)
        response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return response


def app(settings: Settings) -> Starlette:
    """The console of one server. Mount it anywhere; its `state.desk` has to be closed in the same event loop."""
    desk = Desk(settings)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await desk.close()

    made = Starlette(
        routes=routes_of(desk),
        middleware=[Middleware(Guard, settings)],
        exception_handlers={404: desk.no_page, 405: desk.no_page},
        lifespan=lifespan,
    )
    made.router.redirect_slashes = False  # its address would have the scheme of the proxy's request
    made.state.desk = desk
    return made


class OwnCertificate(Protocol):
    """A certificate to show to the server, and its key, in PEM."""

    @property
    def chain(self) -> bytes: ...
    @property
    def key(self) -> bytes: ...


class MountContext(Protocol):
    """The server that mounts the console. endpoint: `HOST:PORT`, in reach of this machine. certificate: to show there,
    if clients need one."""

    @property
    def endpoint(self) -> str: ...
    @property
    def tls(self) -> str: ...
    @property
    def must_sign(self) -> bool: ...
    @property
    def hosts(self) -> frozenset[str]: ...
    @property
    def certificate(self) -> OwnCertificate | None: ...


@asynccontextmanager
async def mounted(context: MountContext) -> AsyncIterator[list[Mount]]:
    """The console inside a server, which it asks over gRPC like any other client."""
    # The way is inside this machine, and the certificate may be for another name.
    cert, key = (None, None) if context.certificate is None else (context.certificate.chain, context.certificate.key)
    tls = Tls(insecure=True, cert=cert, key=key) if context.tls == "tls" else False
    settings = Settings(
        ClientConfig(context.endpoint, tls=tls),
        any_host=context.must_sign,
        hosts=context.hosts,
        must_sign=context.must_sign,
    )
    made = app(settings)
    try:
        yield [Mount("/", made)]
    finally:
        await made.state.desk.close()


def routes_of(desk: Desk) -> list[Route | Mount]:
    sign_in = SignIn(desk)
    looks: dict[str, Page] = {
        "/": overview.overview,
        "/activity": overview.activity,
        "/alive": server.alive,
        "/groups": groups.groups,
        "/groups/{group}": groups.group,
        "/groups/{group}/reset": groups.reset_preview,
        "/groups/{group}/delete": groups.delete_preview,
        "/groups/{group}/activity": groups.activity,
        "/messages": messages.find,
        "/messages/{message_id:path}": messages.message,
        "/dead-letters": dead_letters.index,
        "/dead-letters/{group}": dead_letters.dead_letters,
        "/dead-letters/{group}/export": dead_letters.export,
        "/dead-letters/{group}/purge": dead_letters.purge_preview,
        "/dead-letters/{group}/{letter:path}": dead_letters.letter,
        "/redrives/{plan}": redrives.redrive,
        "/topics": topics.topics,
        "/topics/{topic}": topics.topic,
        "/topics/{topic}/activity": topics.activity,
        "/topics/{topic}/lite": lite_topics.lite_topics,
        "/topics/{topic}/lite/{lite_topic}": lite_topics.lite_topic,
        "/topics/{topic}/delete": topics.delete_preview,
        "/scheduled": topics.scheduled,
        "/clients": server.clients,
        "/clients/{client:path}": server.client,
        "/users": users.users,
        "/users/{user}": users.user,
        "/server": server.server,
        "/mirrors": mirrors.mirrors,
    }
    acts: dict[str, Page] = {
        "/groups/{group}/reset": groups.reset,
        "/groups/{group}/delete": groups.delete,
        "/groups/{group}/pause": groups.pause,
        "/messages/{message_id:path}/skip": messages.skip,
        "/dead-letters/{group}/plan": redrives.plan,
        "/dead-letters/{group}/purge": dead_letters.purge,
        "/dead-letters/{group}/{letter:path}/repair": redrives.repair,
        "/redrives/{plan}/run": redrives.run,
        "/redrives/{plan}/stop": redrives.stop,
        "/redrives/{plan}/cancel": redrives.cancel,
        "/topics": topics.create,
        "/topics/{topic}/publish": topics.publish,
        "/topics/{topic}/delete": topics.delete,
        "/scheduled/cancel": topics.cancel,
        "/users": users.create,
        "/users/{user}": users.change,
        "/users/{user}/policies": users.add_policy,
        "/policies/remove": users.remove_policy,
        "/clients/{client:path}/stack": server.stack,
        "/server/clock": server.confirm_clock,
    }
    return [
        Mount("/static", KeptFiles(directory=STATIC)),
        Route("/sign-in", sign_in.form, methods=["GET"]),
        Route("/sign-in", sign_in.sign_in, methods=["POST"]),
        Route("/sign-out", desk.page(sign_in.sign_out, asks=False), methods=["POST"]),
        *(Route(path, desk.page(page), methods=["GET"]) for path, page in looks.items()),
        *(Route(path, desk.page(page, acts=True), methods=["POST"]) for path, page in acts.items()),
    ]
