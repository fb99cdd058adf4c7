"""The console below a path of a real nginx and a real HAProxy: every link, form, redirect, file and cookie."""

from __future__ import annotations

import asyncio
import html
import re
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

import httpx2
import pytest

import popclient.cli
import popserver
from popclient import Producer
from popclient.admin import Admin
from popclient.config import ClientConfig
from popconsole.app import app
from popconsole.serving import server_of
from popconsole.settings import Settings
from popserver import EmbeddedBroker
from popserver.config import GivenConfig
from tests.console.reverse_proxies import NAME, PROXIES, program, proxy
from tests.console.site import csrf_on
from tests.support.waiting import soon

ROOT = "/popmq"
KEY, SECRET = "root", "s3cret-key"
ODD = "a/b%41 ü?#.."  # an id that proxies like to change
_LINK = re.compile(r'(?:href|src|action|hx-get|data-source|data-alive|data-sign-in)="([^"]*)"')
PAGES_MAX = 150


@contextmanager
def own_console(broker: EmbeddedBroker, path: str) -> Iterator[str]:
    """What `popmq console` serves: its address."""
    settings = Settings(ClientConfig(broker.endpoint), hosts=frozenset({NAME}))
    server = server_of(app(settings), path)
    server.config.port = 0
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    soon(lambda: server.started)
    try:
        yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(params=["serve", "console"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """The HTTP port of a server with users, or of a console of its own."""
    options = {"allow_host": [NAME], "http_path": ROOT, "auth": True, "admin_access_key": KEY, "admin_secret": SECRET}
    with popserver.embedded(http="127.0.0.1:0", **options) as broker:  # type: ignore[arg-type]
        config = ClientConfig(broker.endpoint, access_key=KEY, access_secret=SECRET)
        with Admin(config) as admin, Producer(config) as producer:
            admin.create_topic("orders")
            admin.create_group("billing")
            producer.send("orders", "hello", keys=[ODD])
        if request.param == "serve":
            yield broker.app.http_endpoint
        else:
            with own_console(broker, ROOT) as own:
                yield own


@pytest.fixture(params=PROXIES)
def browser(request: pytest.FixtureRequest, address: str, tmp_path: Path) -> Iterator[httpx2.Client]:
    """A browser that knows the proxy alone."""
    if program(PROXIES[request.param][0]) is None:
        pytest.skip(f"{PROXIES[request.param][0]} is not installed")
    with proxy(request.param, address, tmp_path) as port:
        headers = {"host": f"{NAME}:{port}", "origin": f"http://{NAME}:{port}"}
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers=headers) as made:
            yield made


def go(browser: httpx2.Client, at: str, answer: httpx2.Response) -> tuple[str, httpx2.Response]:
    """Follow redirects, which stay below the path."""
    while answer.is_redirect:
        at = urljoin(at, answer.headers["location"])
        parts = urlsplit(at)
        assert parts.path.startswith(f"{ROOT}/"), at
        at = parts.path + (f"?{parts.query}" if parts.query else "")
        answer = browser.get(at)
    return at, answer


def test_everything_stays_below_the_path(browser: httpx2.Client) -> None:
    _, entry = go(browser, ROOT, browser.get(ROOT))
    assert "<h1>Sign in</h1>" in entry.text
    at, page = go(browser, f"{ROOT}/topics?name=o", browser.get(f"{ROOT}/topics?name=o"))
    assert at.startswith(f"{ROOT}/sign-in?next=")
    data = {"csrf": csrf_on(page.text), "next": f"{ROOT}/topics?name=o", "access_key": KEY, "secret": SECRET}
    signed = browser.post(f"{ROOT}/sign-in", data=data)
    assert (signed.status_code, signed.headers["location"]) == (303, f"{ROOT}/topics?name=o"), signed.text
    assert f"path={ROOT};" in signed.headers["set-cookie"].lower()
    seen = walk(browser)
    for path in ("/topics/orders", "/groups/billing", "/static/console.js", "/users", "/alive"):
        assert any(each.startswith(ROOT + path) for each in seen), path


def walk(browser: httpx2.Client) -> set[str]:
    """Every page, and every file of theirs."""
    waiting, seen = deque([f"{ROOT}/"]), {f"{ROOT}/"}
    while waiting and len(seen) < PAGES_MAX:
        path = waiting.popleft()
        _, answer = go(browser, path, browser.get(path))
        # A group without messages has no page to reset it, and a form's address may take a POST alone.
        assert answer.status_code in (200, 400, 404, 405), (path, answer.status_code, answer.text[:500])
        if "text/html" not in answer.headers["content-type"]:
            continue
        assert "<title>" in answer.text, path
        for link in map(html.unescape, _LINK.findall(answer.text)):
            if link.startswith("#"):
                continue
            assert link.startswith(f"{ROOT}/"), (path, link)
            if link not in seen:
                seen.add(link)
                waiting.append(link)
    return seen


def test_forms_files_and_odd_ids_work(browser: httpx2.Client) -> None:
    page = browser.get(f"{ROOT}/sign-in").text
    browser.post(f"{ROOT}/sign-in", data={"csrf": csrf_on(page), "access_key": KEY, "secret": SECRET})
    csrf = csrf_on(browser.get(f"{ROOT}/topics").text)
    made = browser.post(f"{ROOT}/topics", data={"csrf": csrf, "name": "parcels", "queues": "2"})
    assert (made.status_code, made.headers["location"]) == (303, f"{ROOT}/topics/parcels")
    _, page_of_topic = go(browser, made.headers["location"], browser.get(made.headers["location"]))
    assert "Topic parcels is there." in page_of_topic.text
    by_script = browser.post(
        f"{ROOT}/topics/parcels/publish", data={"csrf": csrf, "body": "x"}, headers={"hx-request": "true"}
    )
    assert by_script.json()["go"].startswith(f"{ROOT}/messages/")
    found = browser.get(f"{ROOT}/messages", params={"find": ODD, "topic": "orders"})
    assert "1 message" in re.sub("</?strong>", "", found.text)
    unknown = browser.get(f"{ROOT}/messages/{quote(ODD, safe='')}")
    assert unknown.status_code == 404
    assert html.escape(ODD) in unknown.text, "the id came through the proxy as it was"
    (style,) = re.findall(r'href="([^"]*console\.css[^"]*)"', found.text)
    assert browser.get(style).headers["content-type"].startswith("text/css")
    browser.post(f"{ROOT}/sign-out", data={"csrf": csrf})
    assert browser.get(f"{ROOT}/").status_code == 303


def test_health_has_both_paths(address: str, browser: httpx2.Client) -> None:
    if browser.get(f"{ROOT}/livez").status_code == 200:  # a server; popmq console has none
        assert httpx2.get(f"http://{address}/readyz").status_code == 200
        assert browser.get(f"{ROOT}/metrics").status_code in (200, 401)


@pytest.mark.parametrize("path", ["popmq", "/a b", "//evil.example", "/a/../b", "https://a/", "/ä", "/%2e"])
def test_a_path_that_is_none_is_refused(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="is no path of a proxy"):
        GivenConfig(http_path=path)
    assert popclient.cli.main(["console", "--http-path", path]) == 2
    assert "is no path of a proxy; write what browsers see, such as /popmq" in capsys.readouterr().err


@pytest.mark.parametrize(("written", "path"), [("", ""), ("/", ""), ("/popmq/", "/popmq"), ("/a/b-1.x", "/a/b-1.x")])
def test_paths(written: str, path: str) -> None:
    assert GivenConfig(http_path=written).http_path == path
