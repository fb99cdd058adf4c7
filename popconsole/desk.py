"""The front desk: finds or opens the visitor's session, checks forms, and turns failures into pages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import quote, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from popclient.aio import Admin
from popclient.errors import Forbidden, NotFound, PopError, Unauthorized, Unreachable, UnsupportedByServer
from popconsole.jobs import Jobs
from popconsole.pulse import Pulse
from popconsole.rendering import render
from popconsole.sessions import Session, Sessions
from popconsole.settings import Settings
from popconsole.visits import OldForm, Page, Refused, Visit, address_in, form_of, is_by_script, root_of, way_back

COOKIE: Final = "popmq_console"
ANSWER_S: Final = 5.0  # how long the server's answer whether callers must sign is taken as true

Endpoint = Callable[[Request], Awaitable[Response]]


class Desk:
    """What all pages of a console share."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.sessions = Sessions(settings)
        self.pulse = Pulse(settings.server.namespace, settings.sample_s)
        self.jobs = Jobs()
        self._unsigned: Admin | None = None
        self._asking = asyncio.Lock()
        self._answered_at, self._answer = float("-inf"), True

    async def close(self) -> None:
        await self.jobs.close()
        await self.pulse.close()
        await self.sessions.close()
        if self._unsigned is not None:
            await self._unsigned.close()

    def page(self, handler: Page, *, acts: bool = False, asks: bool = True) -> Endpoint:
        """An endpoint for visitors who may look. acts: it changes something, so its form has a token.

        asks: whether the server is asked if the user may still look; not for signing out, which always works.
        """

        async def answer(request: Request) -> Response:
            try:
                session = self.sessions.find(request.cookies.get(cookie_of(request)), renew=not asks_by_itself(request))
                if session is None:
                    session = await self._open(request)
                if session is None:
                    return self._to_sign_in(request)
                if asks:
                    await self.sessions.check(session)
                form = await form_of(request) if request.method == "POST" else {}
                visit = Visit(request, session, session.admin, self.pulse, self.jobs, self.settings, form)
                if request.method == "POST":
                    check(visit, acts=acts)
                response = await handler(visit)
                if acts and is_by_script(request) and "location" in response.headers:
                    response = JSONResponse({"go": response.headers["location"]})
                return self.with_cookie(response, session.token, request)
            except Unauthorized:
                return self._signed_out(request)
            except Exception as error:
                if (failure := failure_of(error)) is None:
                    raise
                if is_by_script(request):
                    sentence, status, title = failure
                    facts = {"sentence": sentence, "title": title, "is_old": isinstance(error, OldForm)}
                    return JSONResponse(facts, status)
                return self.failed(request, *failure)
            finally:
                await self.sessions.close_ended()

        return answer

    def with_cookie(self, response: Response, token: str, request: Request) -> Response:
        if request.cookies.get(cookie_of(request)) == token:
            return response
        response.set_cookie(
            cookie_of(request),
            token,
            path=root_of(request) or "/",
            httponly=True,
            samesite="lax",
            # Behind a proxy, only the browser's Origin tells that it speaks HTTPS.
            secure="https" in (request.url.scheme, request.headers.get("origin", "").partition(":")[0]),
        )
        return response

    def failed(self, request: Request, sentence: str, status: int, title: str) -> Response:
        """A page that says what is wrong."""
        session = self.sessions.find(request.cookies.get(cookie_of(request)))
        context = {
            "title": title,
            "sentence": sentence,
            "endpoint": self.settings.server.endpoints,
            "is_signed_in": session is not None,
            "is_lost": status in (404, 405),
            # Of a page that may come again by itself: its address is that of a page, and the server may be back soon.
            "comes_again": request.method == "GET" and status == 502,
        }
        return HTMLResponse(render("failed.html", root_of(request), context), status)

    async def no_page(self, request: Request, error: Exception) -> Response:
        """The answer to an address that no page has, and to a form's address that a browser opens."""
        root, path = root_of(request), request.scope["path"]
        is_file = path.startswith(f"{root}/static/")
        if request.method == "GET" and path != f"{root}/" and path.endswith("/") and not is_file:
            return RedirectResponse(f"{root}/{path.removeprefix(root).strip('/')}", 307)
        sentence = f"There is no page {path[:200]}. Look it up in the menu, or search for what it was about."
        return self.failed(request, sentence, error.status_code if isinstance(error, HTTPException) else 404, "No page")

    def admin_of(self, access_key: str = "", secret: str = "") -> Admin:
        return Admin(self.settings.config_of(access_key, secret))

    async def _open(self, request: Request) -> Session | None:
        """A session for one who does not sign; None if the server asks for a signature."""
        if self._unsigned is None:
            self._unsigned = self.admin_of()
        if await self._must_sign(self._unsigned):
            return None
        if self.settings.is_public:
            raise Refused(
                "Other machines can reach this console, and its server has no users, so anybody could change anything."
                " Give the server users (popmq serve --auth), or listen on 127.0.0.1.",
                403,
            )
        return self.sessions.begin(self._unsigned, address=address_of(request))

    async def _must_sign(self, unsigned: Admin) -> bool:
        """Must callers of the server sign? Asked seldom, because the server counts a caller that it refuses."""
        if self.settings.must_sign is not None:
            return self.settings.must_sign
        async with self._asking:
            if time.monotonic() - self._answered_at >= ANSWER_S:
                try:
                    await unsigned.status()
                    self._answer = False
                except (Unauthorized, Forbidden):
                    self._answer = True
                self._answered_at = time.monotonic()
            return self._answer

    def _to_sign_in(self, request: Request) -> Response:
        if is_by_script(request):
            return JSONResponse({"sentence": "Your session has ended."}, 401)
        # A form is on the page to go back to.
        way = address_in(request) if request.method == "GET" else urlsplit(request.headers.get("referer", "")).path
        back = way_back(way, root_of(request))
        query = "" if back == f"{root_of(request)}/" else f"?next={quote(back, safe='/')}"
        return RedirectResponse(f"{root_of(request)}/sign-in{query}", 303)

    def _signed_out(self, request: Request) -> Response:
        """The server no longer accepts the user."""
        session = self.sessions.find(request.cookies.get(cookie_of(request)))
        if session is not None:
            self.sessions.end(session)
        return self._to_sign_in(request)


def cookie_of(request: Request) -> str:
    """The name of the session's cookie. It has the port, which browsers do not look at: a host has several consoles."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isascii() and port.isdecimal() else COOKIE


def address_of(request: Request) -> str:
    """Where the visitor, or the last proxy, is."""
    return request.client.host if request.client else ""


def asks_by_itself(request: Request) -> bool:
    """Has an open page asked, and no person? Such a request must not make a session longer."""
    return request.method == "GET" and is_by_script(request)


def check(visit: Visit, *, acts: bool) -> None:
    """Raise `Refused` if the form is not from a page of this session, or if the visitor may only look."""
    if not visit.session.is_csrf(visit.given("csrf")):
        raise OldForm("This form is not of your session, which may have ended meanwhile. Open the page again.", 403)
    if acts and not visit.may_act:
        raise Refused("This session may look, and change nothing.", 403)


def failure_of(error: Exception) -> tuple[str, int, str] | None:
    """The sentence, the status of HTTP and the title of a failure that a visitor is told; None for a defect."""
    match error:
        case Refused():
            return error.sentence, error.status, "Not done"
        case Unreachable():
            return error.sentence, 502, "The server does not answer"
        case UnsupportedByServer():
            return error.sentence, 501, "The server does not offer this"
        case NotFound():
            return error.sentence, 404, "Not found"
        case Forbidden():
            return error.sentence, 403, "Not allowed"
        case PopError():
            return error.sentence, 400, "Refused by the server"
        case ValueError() | TypeError():
            return str(error), 400, "Not done"
    return None
