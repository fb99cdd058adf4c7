"""A console in front of a real server, and a browser without a screen."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import unquote

import httpx2
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

import popserver
from popclient.config import ClientConfig
from popconsole.app import app
from popconsole.settings import Settings
from popserver import EmbeddedBroker
from tests.support.builders import START

ADDRESS = "http://127.0.0.1:8082"
_CSRF = re.compile(r'name="csrf" value="([^"]+)"')


class Site:
    """Pages in, pages out."""

    def __init__(self, broker: EmbeddedBroker, browser: TestClient) -> None:
        self.broker = broker
        self.browser = browser

    def get(self, path: str, status: int = 200, **options: Any) -> str:
        """The page as a person reads it."""
        answer = self.browser.get(path, **options)
        assert answer.status_code == status, answer.text
        return html.unescape(answer.text)

    def post(self, path: str, status: int = 303, *, form_on: str = "", **fields: Any) -> httpx2.Response:
        """Fill in the form that is on a page, by default the one with the same address, and send it."""
        data = {"csrf": csrf_on(self.browser.get(form_on or path).text), **fields}
        answer = self.browser.post(path, data=data, follow_redirects=False)
        assert answer.status_code == status, html.unescape(answer.text)
        return answer

    @contextmanager
    def another(self) -> Iterator[Site]:
        """The same console in another browser."""
        # Its event loop is the one in which the console runs.
        browser = TestClient(self.browser.app, ADDRESS, client=("127.0.0.1", 50_001))
        browser.portal = self.browser.portal
        with closing(browser):
            yield Site(self.broker, browser)

    def sign_in(self, key: str, secret: str, status: int = 303, **fields: str) -> httpx2.Response:
        return self.post("/sign-in", status, access_key=key, secret=secret, **fields)


def csrf_on(page: str) -> str:
    found = _CSRF.search(page)
    assert found is not None, "the page has no form that changes anything"
    return found[1]


class DecodedOnce:
    """Servers decode a path once; the test client does it twice."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = unquote(scope["raw_path"].decode())
        await self._app(scope, receive, send)


@contextmanager
def browsing(settings: Settings, address: str = ADDRESS) -> Iterator[TestClient]:
    """A browser at the console's door."""
    made = app(settings)
    made.add_middleware(DecodedOnce)
    with TestClient(made, address, client=("127.0.0.1", 50_000)) as browser:
        yield browser


@contextmanager
def opened(database: str = "sqlite://", *, console: dict[str, Any] | None = None, **options: Any) -> Iterator[Site]:
    """A site on a server of its own, whose clock stands still."""
    with popserver.embedded(database, manual_clock=START, **options) as broker:
        settings = Settings(ClientConfig(broker.endpoint), **{"sample_s": 3_600.0, **(console or {})})
        with browsing(settings) as browser:
            yield Site(broker, browser)
