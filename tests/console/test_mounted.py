"""The console inside a server: `popmq serve` has it on its HTTP port."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest
from structlog.testing import capture_logs

import popserver
from tests.console.site import csrf_on
from tests.support.certificates import Authority


def test_a_server_serves_its_console(tmp_path: Path) -> None:
    with popserver.embedded(http="127.0.0.1:0") as broker:
        base = f"http://{broker.app.http_endpoint}"
        with httpx2.Client(base_url=base) as browser:
            page = browser.get("/")
            assert (page.status_code, "<h1>Overview</h1>" in page.text) == (200, True)
            assert browser.get("/static/console.css").status_code == 200
            made = browser.post("/topics", data={"csrf": csrf_on(browser.get("/topics").text), "name": "orders"})
            assert (made.status_code, made.headers["location"]) == (303, "/topics/orders")
            assert browser.get("/livez").status_code == 200


@pytest.mark.parametrize("tls", ["permissive", "tls"])
def test_a_server_with_users_asks_for_them(tmp_path: Path, tls: str) -> None:
    with (
        popserver.embedded(
            http="127.0.0.1:0", tls=tls, tls_dir=tmp_path, auth=True, admin_access_key="root", admin_secret="s3cret-key"
        ) as broker,
        httpx2.Client(base_url=f"http://{broker.app.http_endpoint}", follow_redirects=True) as browser,
    ):
        data = {"csrf": csrf_on(browser.get("/").text), "access_key": "root", "secret": "s3cret-key"}
        assert "<h1>Overview</h1>" in browser.post("/sign-in", data=data).text


def test_a_server_that_asks_for_certificates_says_that_it_has_no_console(tmp_path: Path, authority: Authority) -> None:
    with (
        capture_logs() as said,
        popserver.embedded(http="127.0.0.1:0", tls="tls", tls_dir=tmp_path, tls_client_ca=authority.ca) as broker,
    ):
        page = httpx2.get(f"http://{broker.app.http_endpoint}/")
    assert (page.status_code, "/readyz" in page.text) == (200, True)
    (line,) = [each for each in said if each["event"] == "not served over HTTP"]
    assert "--client-cert" in line["reason"]
