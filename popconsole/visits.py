"""One request of a visitor: who it is, what may be done, and the page that answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, unquote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from popclient.aio import Admin
from popclient.errors import Forbidden, PopError, Unauthorized, UnsupportedByServer
from popconsole.jobs import Jobs
from popconsole.pulse import Pulse
from popconsole.rendering import name_in, place_of, render
from popconsole.sessions import Session
from popconsole.settings import Settings
from popport.bodies import BODY_BYTES_MAX

FIELDS_MAX: Final = 1_200

T = TypeVar("T")


class Refused(Exception):
    """The console itself refuses the request. status: of HTTP."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.status = status


class OldForm(Refused):
    """The form is of another session; the page, loaded again, has one of this session."""


class Outcome(NamedTuple):
    """What one of a page's calls gave: a value, or the sentence of its failure. The rest of the page works."""

    value: Any
    failure: str


@dataclass(frozen=True, slots=True)
class Visit:
    """A request by somebody who may look."""

    request: Request
    session: Session
    admin: Admin
    pulse: Pulse
    jobs: Jobs
    settings: Settings
    form: Mapping[str, list[str]]

    @property
    def may_act(self) -> bool:
        return not self.session.read_only

    @property
    def is_news(self) -> bool:
        """Does a page ask for its live part?"""
        return is_by_script(self.request)

    def asked(self, name: str, default: str = "") -> str:
        """A value from the address."""
        return self.request.query_params.get(name, default)

    def asked_number(self, name: str) -> int:
        """A whole number from the address; 0 if it is not there."""
        written = self.asked(name) or "0"
        if not written.isdecimal() or len(written) > 18:
            raise Refused(f"{name} is '{written}'; it must be a whole number")
        return int(written)

    def given(self, name: str, default: str = "") -> str:
        """A value from the form."""
        return self.form.get(name, [default])[-1]

    def named(self, name: str) -> str:
        """A part of the path."""
        return name_in(str(self.request.path_params[name]))

    def require_name(self, name: str) -> None:
        """Raise `Refused` unless the visitor has typed the name of what will change."""
        if self.given("confirm").strip() != name:
            raise Refused(f"nothing was changed: the name typed is not {name!r}", 400)

    def show(self, template: str, http_status: int = 200, **context: Any) -> Response:
        return HTMLResponse(render(template, root_of(self.request), self._frame() | context), http_status)

    async def show_large(self, template: str, **context: Any) -> Response:
        """The same in a thread: others do not wait for a page that is long in the making."""
        page = await asyncio.to_thread(render, template, root_of(self.request), self._frame() | context)
        return HTMLResponse(page)

    def go(self, path: str, notice: str = "") -> Response:
        """After an action: to the page that shows its result."""
        self.session.notice = notice
        return RedirectResponse(path, 303)

    async def attempt(self, call: Awaitable[T]) -> Outcome:
        """A call that a page can do without. Raises Unauthorized and Forbidden: who may not look sees no page."""
        try:
            return Outcome(await call, "")
        except UnsupportedByServer:
            return Outcome(None, "This server does not offer it; a newer PopMQ does.")
        except (Unauthorized, Forbidden):
            raise
        except PopError as error:
            return Outcome(None, error.sentence)

    def path(self, *parts: str) -> str:
        return f"{root_of(self.request)}/{place_of(*parts)}"

    def _frame(self) -> dict[str, Any]:
        notice, self.session.notice = self.session.notice, ""
        return {
            "session": self.session,
            "may_act": self.may_act,
            "notice": notice,
            "endpoint": self.settings.server.endpoints,
            "namespace": self.settings.server.namespace,
            "here": self.request.scope["path"].removeprefix(root_of(self.request)),
            "address": address_in(self.request),
            "has_mirrors": self.pulse.mirrors.has_any,
        }


Page = Callable[[Visit], Awaitable[Response]]


def root_of(request: Request) -> str:
    """The path under which the console is mounted."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def is_by_script(request: Request) -> bool:
    """Does the script of an open page ask, which takes no page for a failure?"""
    return "hx-request" in request.headers


def way_back(written: str, root: str) -> str:
    """The page that a visitor wanted before the sign-in: a path of this console; else the overview.

    The address comes from strangers. Browsers take `//` and `\\` for the begin of another host, and leave out control
    characters; proxies may decode what is encoded.
    """
    home = f"{root}/"
    decoded, before = written, ""
    while decoded != before:
        decoded, before = unquote(decoded), decoded
    path = decoded.partition("?")[0]
    is_plain = written.isascii() and written.isprintable() and " " not in written and "\\" not in path
    if not is_plain or not path.startswith(home) or path[len(home) :].startswith(("/", "sign-in", "sign-out")):
        return home
    return home if {".", ".."} & set(path.split("/")) else written


def address_in(request: Request) -> str:
    """Path and query as the browser has sent them: a name in the path may have any characters."""
    path = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
    query = request.scope["query_string"]
    return bytes(path + (b"?" + query if query else b"")).decode("latin-1")


async def form_of(request: Request) -> dict[str, list[str]]:
    """The fields of a form. Raises `Refused` if it is too large, or if its sender has left."""
    if int(request.headers.get("content-length") or 0) > BODY_BYTES_MAX:
        raise Refused(f"the form is larger than {BODY_BYTES_MAX} bytes", 413)
    raw = b""
    try:
        async for part in request.stream():
            raw += part
            if len(raw) > BODY_BYTES_MAX:
                raise Refused(f"the form is larger than {BODY_BYTES_MAX} bytes", 413)
    except ClientDisconnect:
        raise Refused("the connection ended before the form") from None
    form: dict[str, list[str]] = {}
    try:
        for name, value in parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX):
            form.setdefault(name, []).append(value)
    except ValueError:
        raise Refused(f"the form is no text, or has more than {FIELDS_MAX} fields") from None
    return form
