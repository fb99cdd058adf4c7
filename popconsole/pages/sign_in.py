"""Signing in with a user's access key and secret, and out again."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from popclient.errors import Forbidden, PopError, Unauthorized
from popconsole.desk import Desk, address_of, cookie_of, failure_of
from popconsole.rendering import render
from popconsole.sessions import Stranger
from popconsole.visits import Refused, Visit, form_of, root_of

KEY_MAX = 256  # characters; no access key and no secret of a server is longer


class SignIn:
    """The pages of those who are not signed in yet."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def form(self, request: Request) -> Response:
        token = request.cookies.get(cookie_of(request))
        if self._desk.sessions.find(token) is not None:
            return RedirectResponse(f"{root_of(request)}/", 303)
        return self._form(request, self._desk.sessions.stranger(token))

    async def sign_in(self, request: Request) -> Response:
        try:
            return await self._sign_in(request)
        except Refused as refusal:
            return self._desk.failed(request, refusal.sentence, refusal.status, "Not signed in")

    async def _sign_in(self, request: Request) -> Response:
        form = {name: values[-1] for name, values in (await form_of(request)).items()}
        stranger = self._desk.sessions.stranger(request.cookies.get(cookie_of(request)))
        if not stranger.is_csrf(form.get("csrf", "")):
            return self._form(request, self._desk.sessions.stranger(), "The page was open too long. Try again.", 403)
        key, secret = form.get("access_key", "").strip(), form.get("secret", "")
        if not key or not secret:
            return self._form(request, stranger, "Give both the access key and the secret.", 400, key)
        if max(len(key), len(secret)) > KEY_MAX:
            # It would travel in a header that the server refuses only after seconds.
            return self._form(request, stranger, f"Keys and secrets have at most {KEY_MAX} characters.", 400)
        try:
            admin = self._desk.admin_of(key, secret)
        except ValueError as error:
            return self._form(request, stranger, str(error), 400, key)
        attempt = self._desk.sessions.try_key(address_of(request), key)
        if attempt is None:
            await admin.close()
            return self._form(request, stranger, "Too many attempts failed; wait a minute.", 429, key)
        try:
            await admin.status()
        except PopError as error:
            await admin.close()
            if not isinstance(error, Unauthorized):
                self._desk.sessions.no_guess(attempt)
            return self._refused(request, stranger, error, key)
        self._desk.sessions.signed_in(attempt)
        # A new token: nobody can have planted it before the visitor signed in.
        config = self._desk.settings.config_of(key, secret)
        signed = self._desk.sessions.begin(
            admin, key, address=address_of(request), config=config, read_only=bool(form.get("read_only"))
        )
        return self._desk.with_cookie(RedirectResponse(f"{root_of(request)}/", 303), signed.token, request)

    def _refused(self, request: Request, stranger: Stranger, error: PopError, key: str) -> Response:
        if isinstance(error, Unauthorized):
            return self._form(request, stranger, "The server does not accept this key with this secret.", 403, key)
        if isinstance(error, Forbidden):
            return self._form(
                request, stranger, f"User '{key}' is no admin of the server; the console is for admins.", 403, key
            )
        sentence, status, _ = failure_of(error) or (error.sentence, 400, "")
        return self._form(request, stranger, sentence, status, key)

    def _form(
        self, request: Request, stranger: Stranger, failure: str = "", status: int = 200, key: str = ""
    ) -> Response:
        context = {
            "endpoint": self._desk.settings.server.endpoints,
            "csrf": stranger.csrf,
            "failure": failure,
            "access_key": key,
            "read_only": self._desk.settings.read_only,
        }
        page = HTMLResponse(render("sign_in.html", root_of(request), context), status)
        return self._desk.with_cookie(page, stranger.token, request)

    async def sign_out(self, visit: Visit) -> Response:
        self._desk.sessions.end(visit.session)
        return RedirectResponse(visit.path("sign-in"), 303)
