"""Signing in with a user's access key and secret, and out again."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from popclient.errors import Forbidden, PopError, Unauthorized
from popconsole.desk import Desk, address_of, cookie_of, failure_of
from popconsole.rendering import render
from popconsole.sessions import Stranger
from popconsole.visits import Refused, Visit, form_of, root_of, way_back

KEY_MAX = 256  # characters; no access key and no secret of a server is longer


class SignIn:
    """The pages of those who are not signed in yet."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def form(self, request: Request) -> Response:
        token = request.cookies.get(cookie_of(request))
        back = way_back(request.query_params.get("next", ""), root_of(request))
        if self._desk.sessions.find(token) is not None:
            return RedirectResponse(back, 303)
        return self._form(request, self._desk.sessions.stranger(token), back=back)

    async def sign_in(self, request: Request) -> Response:
        try:
            return await self._sign_in(request)
        except Refused as refusal:
            return self._desk.failed(request, refusal.sentence, refusal.status, "Not signed in")

    async def _sign_in(self, request: Request) -> Response:
        form = {name: values[-1] for name, values in (await form_of(request)).items()}
        stranger = self._desk.sessions.stranger(request.cookies.get(cookie_of(request)))
        back = way_back(form.get("next", ""), root_of(request))
        key, secret = form.get("access_key", "").strip(), form.get("secret", "")

        def again(failure: str, status: int = 400, who: Stranger = stranger) -> Response:
            return self._form(request, who, failure, status, key[:KEY_MAX], back)

        if not stranger.is_csrf(form.get("csrf", "")):
            return again("The page was open too long. Try again.", 403, self._desk.sessions.stranger())
        if not key or not secret:
            return again("Give both the access key and the secret.")
        if max(len(key), len(secret)) > KEY_MAX:
            # It would travel in a header that the server refuses only after seconds.
            return again(f"Keys and secrets have at most {KEY_MAX} characters.")
        try:
            admin = self._desk.admin_of(key, secret)
        except ValueError as error:
            return again(str(error))
        attempt = self._desk.sessions.try_key(address_of(request), key)
        if attempt is None:
            await admin.close()
            return again("Too many attempts failed; wait a minute.", 429)
        try:
            await admin.status()
        except PopError as error:
            await admin.close()
            if not isinstance(error, Unauthorized):
                self._desk.sessions.no_guess(attempt)
            return again(*_refusal(error, key))
        self._desk.sessions.signed_in(attempt)
        # A new token: nobody can have planted it before the visitor signed in.
        config = self._desk.settings.config_of(key, secret)
        signed = self._desk.sessions.begin(
            admin, key, address=address_of(request), config=config, read_only=bool(form.get("read_only"))
        )
        return self._desk.with_cookie(RedirectResponse(back, 303), signed.token, request)

    def _form(
        self, request: Request, stranger: Stranger, failure: str = "", status: int = 200, key: str = "", back: str = ""
    ) -> Response:
        context = {
            "endpoint": self._desk.settings.server.endpoints,
            "csrf": stranger.csrf,
            "failure": failure,
            "access_key": key,
            "back": back,
            "read_only": self._desk.settings.read_only,
        }
        page = HTMLResponse(render("sign_in.html", root_of(request), context), status)
        return self._desk.with_cookie(page, stranger.token, request)

    async def sign_out(self, visit: Visit) -> Response:
        self._desk.sessions.end(visit.session)
        return RedirectResponse(visit.path("sign-in"), 303)


def _refusal(error: PopError, key: str) -> tuple[str, int]:
    """What the visitor is told, and the status of HTTP."""
    if isinstance(error, Unauthorized):
        return "The server does not accept this key with this secret.", 403
    if isinstance(error, Forbidden):
        return f"User '{key}' is no admin of the server; the console is for admins.", 403
    sentence, status, _ = failure_of(error) or (error.sentence, 400, "")
    return sentence, status
