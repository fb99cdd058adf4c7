"""A page never shows a server that does not answer as one that works, and never loses what was typed."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from popclient.admin import Admin
from popclient.config import ClientConfig
from popconsole import rendering
from popconsole.settings import Settings
from popserver import EmbeddedBroker, embedded
from tests.browser.conftest import console, playwright
from tests.browser.processes import own_console, server
from tests.support.postgres import fresh_database, postgres_server

pytestmark = pytest.mark.browser

Open = Callable[..., Any]
SINCE = re.compile(r"(no answer|not ready|not up to date) since \d\d:\d\d:\d\d UTC")
RED, GREEN = "rgb(210, 52, 69)", "rgb(47, 147, 80)"


def is_dead(page: Any, why: str) -> None:
    """Waits until the page is grey, with a red dot and the reason."""
    page.wait_for_selector('body[data-state="dead"]')
    page.locator("#alarm").get_by_text(why).first.wait_for()
    assert SINCE.search(page.locator("[data-live-said]").inner_text())
    assert page.locator(".live-dot").evaluate("each => getComputedStyle(each).backgroundColor") == RED
    assert "grayscale" in page.locator("main > .top").evaluate("each => getComputedStyle(each).filter")


def is_live(page: Any) -> None:
    page.wait_for_selector('body[data-state="live"]')
    assert page.locator(".live-dot").evaluate("each => getComputedStyle(each).backgroundColor") == GREEN
    assert page.locator("#alarm").inner_text() == ""
    assert page.locator("main > .top").evaluate("each => getComputedStyle(each).filter") == "none"


@pytest.mark.parametrize("path", ["/", "/topics"])
def test_a_killed_server_is_shown_as_one(open_page: Open, tmp_path: Path, path: str) -> None:
    with server(f"sqlite:///{tmp_path}/mq.db") as (process, _, address):
        page = open_page(address + path, may_fail=True, color_scheme="light")
        is_live(page)
        process.kill()
        is_dead(page, "does not answer")
        process.start()
        is_live(page)


def test_a_killed_server_is_shown_by_a_console_of_its_own(open_page: Open, tmp_path: Path) -> None:
    with server(f"sqlite:///{tmp_path}/mq.db") as (process, endpoint, _), own_console(endpoint) as (own, address):
        page = open_page(f"{address}/groups", may_fail=True, color_scheme="light")
        is_live(page)
        process.kill()
        is_dead(page, endpoint)
        # A page that is opened meanwhile says it, and comes when the server is back.
        other = open_page(f"{address}/topics", may_fail=True)
        other.get_by_role("heading", name="The server does not answer").wait_for()
        process.start()
        is_live(page)
        other.get_by_role("heading", name="Topics").wait_for()
        own.send(signal.SIGSTOP)
        is_dead(page, "has not answered within 8 s")
        own.send(signal.SIGCONT)
        is_live(page)


def test_a_server_whose_database_is_gone_is_not_ready(open_page: Open) -> None:
    with (
        postgres_server(own=True) as postgres,
        fresh_database(postgres) as url,
        server(url) as (_, _, address),
    ):
        page = open_page(f"{address}/topics", may_fail=True, color_scheme="light")
        is_live(page)
        postgres.kill()
        is_dead(page, "Postgres")
        postgres.restart()
        is_live(page)


def test_one_of_two_servers_that_is_dead_needs_a_person(open_page: Open) -> None:
    with (
        postgres_server(own=True) as postgres,
        fresh_database(postgres) as url,
        server(url) as (_, _, address),
        server(url) as (other, endpoint, _),
    ):
        page = open_page(address, may_fail=True, color_scheme="light")
        silent = page.locator("#live").get_by_text(f"Server {endpoint} is silent")
        # It is listed for half a minute. While answers take long, the console may look between two such times only.
        for _ in range(5):
            other.kill()
            with suppress(playwright.TimeoutError):
                silent.wait_for(timeout=40_000)
                break
            other.start()
        else:
            pytest.fail("a server was killed five times, and no page said so")
        is_live(page)


@pytest.fixture
def guarded() -> Iterator[tuple[str, Any]]:
    """A console of a server that has an admin `root`, and its sessions."""
    with (
        embedded(auth=True, admin_access_key="root", admin_secret="s3cret-key") as broker,
        console(Settings(ClientConfig(broker.endpoint), sample_s=1.0)) as (address, admin_server),
    ):
        yield address, admin_server.sessions


def sign_in(page: Any) -> None:
    page.get_by_label("Access key").fill("root")
    page.get_by_label("Secret").fill("s3cret-key")
    page.get_by_role("button", name="Sign in").click()


def test_a_form_that_was_sent_after_the_session_waits_for_its_page(open_page: Open, guarded: Any) -> None:
    address, sessions = guarded
    page = open_page(f"{address}/topics?name=x", may_fail=True)
    sign_in(page)
    page.wait_for_url(f"{address}/topics?name=x")  # the page that was asked for
    page.locator("main form [name=name]").last.fill("orders-of-today")
    page.get_by_label("FIFO").check()
    sessions._signed.clear()
    page.get_by_role("button", name="Create").click()
    page.get_by_role("heading", name="Sign in").wait_for()
    sign_in(page)
    page.get_by_text("What you typed is here again").wait_for()
    assert page.url == f"{address}/topics?name=x"
    assert page.locator("main form [name=name]").last.input_value() == "orders-of-today"
    assert page.get_by_label("FIFO").is_checked()
    page.get_by_label("NORMAL").uncheck()
    page.get_by_role("button", name="Create").click()
    page.get_by_role("heading", name="orders-of-today").wait_for()


def test_nobody_who_types_is_sent_away(open_page: Open, guarded: Any) -> None:
    address, sessions = guarded
    page = open_page(f"{address}/users", may_fail=True)
    sign_in(page)
    page.locator("main form [name=access_key]").fill("bob")
    page.locator("main form [name=secret]").fill("bobs-secret")
    sessions._signed.clear()
    page.locator("#alarm").get_by_text("Your session has ended").wait_for()
    assert page.locator("[data-live-said]").inner_text() == "session ended"
    page.get_by_role("link", name="Sign in again").click()
    sign_in(page)
    page.get_by_text("What you typed is here again").wait_for()
    assert page.locator("main form [name=access_key]").input_value() == "bob"
    assert page.locator("main form [name=secret]").input_value() == "", "secrets are kept nowhere"


def test_a_page_without_a_word_goes_to_the_sign_in_and_back(open_page: Open, guarded: Any) -> None:
    address, sessions = guarded
    page = open_page(f"{address}/server?a=1&b=/x", may_fail=True)
    sign_in(page)
    page.get_by_role("heading", name="Server", exact=True).wait_for()
    sessions._signed.clear()
    page.get_by_role("heading", name="Sign in").wait_for()
    sign_in(page)
    page.wait_for_url(f"{address}/server?a=1&b=/x")


@pytest.fixture
def plain() -> Iterator[tuple[EmbeddedBroker, str, Any]]:
    with embedded() as broker, Admin(broker.endpoint) as admin:
        admin.create_topic("orders")
        admin.create_group("billing")
        with console(Settings(ClientConfig(broker.endpoint), sample_s=1.0)) as (address, admin_server):
            yield broker, address, admin_server


def test_a_refused_form_stays_and_says_why(open_page: Open, plain: Any) -> None:
    _, address, _ = plain
    page = open_page(f"{address}/topics", may_fail=True)
    page.locator("main form [name=name]").last.fill("not/a/name")
    page.get_by_role("button", name="Create").click()
    page.get_by_role("alert").get_by_text("not/a/name").wait_for()
    assert page.locator("main form [name=name]").last.input_value() == "not/a/name"
    assert page.url == f"{address}/topics"


@pytest.mark.parametrize("answer", ["none", "502"])
def test_a_form_without_an_answer_stays(open_page: Open, plain: Any, answer: str) -> None:
    _, address, _ = plain
    page = open_page(f"{address}/topics/orders", may_fail=True)
    if answer == "none":
        page.route("**/publish", lambda route: route.abort("connectionrefused"))
    else:
        page.route("**/publish", lambda route: route.fulfill(status=502, content_type="text/html", body="<h1>Bad</h1>"))
    page.get_by_label("Body").fill("a long text")
    page.get_by_role("button", name="Send to orders").click()
    page.get_by_role("alert").get_by_text("Not known whether it was done").wait_for()
    assert page.get_by_label("Body").input_value() == "a long text"
    page.unroute("**/publish")
    page.get_by_role("button", name="Send to orders").click()
    page.get_by_text("The message is stored.").wait_for()


def test_a_form_of_a_console_that_was_started_again_is_kept(open_page: Open, plain: Any) -> None:
    _, address, admin_server = plain
    page = open_page(f"{address}/topics/orders", may_fail=True)
    page.get_by_label("Body").fill("a long text")
    admin_server.sessions._unsigned.clear()
    page.get_by_role("button", name="Send to orders").click()
    page.get_by_text("What you typed is here again").wait_for()
    page.get_by_role("button", name="Send to orders").click()
    page.get_by_text("The message is stored.").wait_for()


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [(502, "<h1>Bad Gateway</h1>", "HTTP 502"), (504, "", "HTTP 504"), (200, "<h1>Log in</h1>", "no answer of the")],
)
def test_what_a_proxy_answers_is_no_part_of_the_page(
    open_page: Open, plain: Any, status: int, body: str, why: str
) -> None:
    _, address, _ = plain

    def other(route: Any) -> None:
        if "hx-request" in route.request.headers and not route.request.url.endswith("/alive"):
            route.fulfill(status=status, content_type="text/html", body=body)
        else:
            route.fallback()

    page = open_page(address, may_fail=True)
    page.route("**/*", other)
    is_dead(page, why)
    assert page.get_by_role("heading", name="What needs a person").is_visible(), "what was there is still there"
    page.unroute("**/*")
    page.wait_for_selector('body[data-state="live"]')


def test_a_part_that_is_gone_is_no_silent_one(open_page: Open, plain: Any) -> None:
    broker, address, _ = plain
    page = open_page(f"{address}/groups/billing", may_fail=True)
    is_live(page)
    with Admin(broker.endpoint) as admin:
        admin.delete_group("billing")
    is_dead(page, "group 'billing' does not exist")


def test_a_page_of_another_version_says_so(open_page: Open, plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, address, _ = plain
    page = open_page(f"{address}/topics/orders", may_fail=True)
    page.get_by_label("Body").fill("a long text")
    monkeypatch.setattr(rendering, "VERSION", "another")
    rendering.build.cache_clear()
    page.locator("#alarm").get_by_text("of another version").wait_for()
    page.get_by_role("link", name="Load the page again").click()
    page.get_by_text("What you typed is here again").wait_for()
    assert page.get_by_label("Body").input_value() == "a long text"
    rendering.build.cache_clear()


def test_a_machine_that_slept_asks_before_it_believes(open_page: Open, plain: Any) -> None:
    _, address, _ = plain
    page = open_page(address, may_fail=True, clock=True)
    is_live(page)
    page.route("**/*", lambda route: None if "hx-request" in route.request.headers else route.fallback())
    page.clock.fast_forward("10:00")
    page.wait_for_selector('body[data-state="asking"], body[data-state="dead"]')
    assert "no answer since" in page.locator("[data-live-said]").inner_text()


def test_a_slow_answer_is_told(open_page: Open, plain: Any) -> None:
    _, address, _ = plain
    page = open_page(f"{address}/topics", may_fail=True)
    is_live(page)
    page.route("**/alive", lambda route: None)
    page.wait_for_selector('body[data-state="asking"]')
    assert "waiting" in page.locator("[data-live-said]").inner_text()
    is_dead(page, "has not answered within 8 s")
    page.unroute("**/alive")
    is_live(page)
