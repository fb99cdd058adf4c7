"""The console inside a server: `popmq serve` has it on its HTTP port."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from structlog.testing import capture_logs

import popclient
import popserver
from popclient.admin import Admin
from popclient.config import ClientConfig
from popserver.front.self_signed import make_client_certificate
from tests.console.site import csrf_on
from tests.support.certificates import Authority

SECRET = "s3cret-key"


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


ASKS: dict[str, Any] = {"tls": "tls", "auth": True, "admin_access_key": "root", "admin_secret": SECRET}


@pytest.mark.parametrize("admin_at", ["", "127.0.0.1:0"], ids=["one port", "a port for the administration"])
def test_visitors_of_a_server_that_asks_for_certificates_sign_in_by_key_and_secret(
    tmp_path: Path, authority: Authority, admin_at: str
) -> None:
    shown = authority.issue("operator")
    options: Any = {
        "http": "127.0.0.1:0",
        "admin": admin_at,
        "tls_dir": tmp_path,
        "tls_client_ca": authority.ca,
        **ASKS,
    }
    with popserver.embedded(**options) as broker:
        tls = popclient.Tls(insecure=True, cert=shown.cert, key=shown.key)
        with Admin(ClientConfig(broker.admin_endpoint, tls=tls, access_key="root", access_secret=SECRET)) as admin:
            admin.create_user("alice", SECRET)
        pages = {}
        for key, secret in (("root", SECRET), ("root", "wrong-secret"), ("alice", SECRET)):
            with httpx2.Client(base_url=f"http://{broker.app.http_endpoint}", follow_redirects=True) as browser:
                data = {"csrf": csrf_on(browser.get("/").text), "access_key": key, "secret": secret}
                pages[key, secret] = browser.post("/sign-in", data=data).text
        assert "<h1>Overview</h1>" in pages["root", SECRET]
        assert "<h1>Overview</h1>" not in pages["root", "wrong-secret"]
        assert "<h1>Overview</h1>" not in pages["alice", SECRET]  # who is no admin


def test_the_consoles_certificate_lets_in_nobody_else(tmp_path: Path, authority: Authority) -> None:
    stranger = make_client_certificate(datetime.now(UTC))  # looks like the console's
    with popserver.embedded(http="127.0.0.1:0", tls_dir=tmp_path, tls_client_ca=authority.ca, **ASKS) as broker:
        own = broker.app.monitoring.own_client
        assert own is not None
        assert "PRIVATE" not in repr(own)
        assert not [each for each in tmp_path.rglob("*") if each.is_file() and own.key in each.read_bytes()]
        for tls in (popclient.Tls(insecure=True), popclient.Tls(insecure=True, cert=stranger.chain, key=stranger.key)):
            config = ClientConfig(broker.endpoint, tls=tls, access_key="root", access_secret=SECRET, request_timeout=1)
            with Admin(config) as admin, pytest.raises(popclient.Unreachable, match="after the TLS handshake"):
                admin.status()


def test_a_server_that_asks_for_certificates_and_no_users_says_that_it_has_no_console(
    tmp_path: Path, authority: Authority
) -> None:
    options: Any = {"http": "127.0.0.1:0", "tls_dir": tmp_path}
    with (
        capture_logs() as said,
        popserver.embedded(allow_host=["mq.example"], tls="tls", tls_client_ca=authority.ca, **options) as broker,
    ):
        page = httpx2.get(f"http://{broker.app.http_endpoint}/")
    assert (page.status_code, "/readyz" in page.text) == (200, True)
    (line,) = [each for each in said if each["event"] == "not served over HTTP"]
    assert "--client-cert" in line["reason"]
    assert "--auth" in line["reason"]
    assert not any("anybody" in each["event"] for each in said), "nobody has a console to change anything"
