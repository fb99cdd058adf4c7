"""A real browser in front of a real console. `make test-browser` runs these tests; elsewhere they need Chromium."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from popclient.config import ClientConfig
from popconsole.app import app
from popconsole.settings import Settings
from tests.browser.world import World, world
from tests.support.waiting import soon

playwright = pytest.importorskip("playwright.sync_api")
# What Chromium and htmx say in the console of the browser.
FAILED_REQUESTS = ("Failed to load resource", "Response Status Error Code", "htmx:")
PATIENCE_MS = 90_000  # for one fact; the console itself asks less often where answers take long


@contextmanager
def console(settings: Settings) -> Iterator[tuple[str, Any]]:
    """A console that listens: its address, and the server it shows."""
    made = app(settings)
    config = uvicorn.Config(made, port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    soon(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}", made.state.desk
    finally:
        server.should_exit = True
        thread.join()


def chromium_path() -> str | None:
    """Debian's Chromium is found by its name, another one is named by POPMQ_CHROMIUM."""
    return os.environ.get("POPMQ_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")  # its event loop runs in this thread, and asynchronous tests of others need theirs
def chromium() -> Iterator[Any]:
    """The browser."""
    path = chromium_path()
    if path is None:
        pytest.skip("no Chromium is installed (apt-get install chromium), and POPMQ_CHROMIUM names none")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def flights() -> Iterator[World]:
    with world() as made:
        yield made


@pytest.fixture(scope="module")
def address(flights: World) -> Iterator[str]:
    """A console of the flights."""
    with console(Settings(ClientConfig(flights.endpoint), sample_s=1.0)) as (at, _):
        yield at


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages that must not report an error, such as a script that the policy forbids."""
    contexts: list[Any] = []
    errors: list[str] = []

    def open_one(url: str, *, may_fail: bool = False, clock: bool = False, **options: Any) -> Any:
        """may_fail: requests may, not scripts. clock: the page's time can be moved."""
        context = chromium.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()

        def tell(text: str) -> None:
            if not (may_fail and text.startswith(FAILED_REQUESTS)):
                errors.append(text)

        if clock:
            page.clock.install()
        page.on("console", lambda message: tell(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: errors.append(f"a dialog said {dialog.message}"))
        page.goto(url)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert errors == []
