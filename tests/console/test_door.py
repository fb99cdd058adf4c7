"""Who gets in, and who may change something: names, origins, sessions, tokens, signatures, roles."""

from __future__ import annotations

import html
import itertools
from typing import Any

import pytest
from starlette.requests import Request
from structlog.testing import capture_logs

import popclient.admin
from popclient.aio import Admin
from popclient.config import ClientConfig
from popclient.errors import Unauthorized
from popconsole import sessions as sessions_module
from popconsole.guard import POLICY
from popconsole.pulse import Pulse
from popconsole.sessions import CHECK_S, SESSIONS_MAX, TRIES_MAX, TRIES_OF_KEY_MAX, TRIES_S, Sessions
from popconsole.settings import Settings
from popconsole.visits import Refused, form_of, way_back
from tests.console.site import Site, browsing, csrf_on, opened
from tests.support.admin_server import AdminServer
from tests.support.waiting import eventually

HERE = "127.0.0.1:8082"


def test_without_users_the_overview_is_the_first_page(site: Site) -> None:
    assert "<h1>Overview</h1>" in site.get("/")


def test_every_answer_forbids_scripts_and_frames_of_others(site: Site) -> None:
    for path in ("/", "/groups/missing", "/static/console.js", "/nowhere"):
        answer = site.browser.get(path)
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in POLICY
    assert site.browser.get("/").headers["cache-control"] == "no-store"


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "xlocalhost"])
def test_a_name_that_is_not_ours_is_refused(site: Site, name: str) -> None:
    answer = site.browser.get("/", headers={"host": name})
    assert (answer.status_code, "--allow-host" in answer.text) == (403, True)


@pytest.mark.parametrize("name", ["127.0.0.1:1", "localhost:8082", "[::1]:8082", "10.0.0.7", "console.localhost", ""])
def test_addresses_and_localhost_are_ours(site: Site, name: str) -> None:
    assert site.browser.get("/", headers={"host": name}).status_code == 200


def test_a_name_can_be_allowed() -> None:
    with opened(console={"hosts": frozenset({"mq.example"})}) as site:
        assert site.browser.get("/", headers={"host": "MQ.example:443"}).status_code == 200


@pytest.mark.parametrize(
    "headers", [{"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}]
)
def test_a_page_of_another_site_changes_nothing(site: Site, admin_server: AdminServer, headers: dict[str, str]) -> None:
    admin_server.make_group("billing")
    data = {"csrf": csrf_on(site.browser.get("/groups/billing/delete").text), "confirm": "billing"}
    assert site.browser.post("/groups/billing/delete", data=data, headers=headers).status_code == 403
    site.get("/groups/billing")


def test_a_form_without_its_token_changes_nothing(site: Site, admin_server: AdminServer) -> None:
    admin_server.make_group("billing")
    for token in ("", "guessed"):
        answer = site.browser.post("/groups/billing/delete", data={"csrf": token, "confirm": "billing"})
        assert (answer.status_code, "not of your session" in answer.text) == (403, True)
    site.get("/groups/billing")


def test_a_form_with_its_token_and_the_name_does(site: Site, admin_server: AdminServer) -> None:
    admin_server.make_group("billing")
    answer = site.post("/groups/billing/delete", 400, confirm="biling")
    assert "the name typed is not" in answer.text
    site.post("/groups/billing/delete", confirm="billing")
    assert "Group billing is deleted." in site.get("/groups")
    site.get("/groups/billing", 404)


def test_with_users_every_page_leads_to_the_sign_in(guarded_site: Site) -> None:
    for path, sign_in in (("/", "/sign-in"), ("/messages/a%2Fb?show=x", "/sign-in?next=/messages/a%252Fb%3Fshow%3Dx")):
        answer = guarded_site.browser.get(path, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, sign_in)
    for path in ("/groups", "/activity", "/alive"):
        part = guarded_site.browser.get(path, headers={"hx-request": "true"}, follow_redirects=False)
        assert (part.status_code, part.json()) == (401, {"sentence": "Your session has ended."})


def test_the_sign_in_leads_to_the_page_that_was_asked_for(guarded_site: Site) -> None:
    asked = "/messages/a%2Fb?show=text&x=1"
    page = guarded_site.browser.get(asked)
    assert page.url.path == "/sign-in"
    data = {"csrf": csrf_on(page.text), "access_key": "root", "secret": "wrong", "next": asked}
    again = guarded_site.browser.post("/sign-in", data=data)
    assert html.escape(asked) in again.text, "a wrong secret loses it not"
    answer = guarded_site.browser.post("/sign-in", data={**data, "secret": "s3cret-key"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, asked)
    signed = guarded_site.browser.get("/sign-in", params={"next": "/users"}, follow_redirects=False)
    assert signed.headers["location"] == "/users"


def test_a_form_without_a_session_leads_back_to_its_page(guarded_site: Site) -> None:
    headers = {"referer": "http://127.0.0.1:8082/topics"}
    answer = guarded_site.browser.post("/topics", data={"name": "x"}, headers=headers, follow_redirects=False)
    assert answer.headers["location"] == "/sign-in?next=/topics"
    by_script = guarded_site.browser.post("/topics", data={"name": "x"}, headers={"hx-request": "true"})
    assert by_script.status_code == 401


@pytest.mark.parametrize("root", ["", "/popmq"])
@pytest.mark.parametrize(
    "path",
    [
        "//evil.example",
        "///evil.example",
        "/\\evil.example",
        "\\evil.example",
        "/%2Fevil.example",
        "/%252fevil.example",
        "/%5Cevil.example",
        "/\t/evil.example",
        "/\n/evil.example",
        "/ /evil.example",
        "https://evil.example/",
        "HTTPS:evil.example",
        "javascript:alert(1)",
        "%6Aavascript:alert(1)",
        "data:text/html,x",
        "evil.example",
        "@evil.example",
        "/../evil",
        "/%2e%2e/evil",
        "/.//evil.example",
        "/\u2044evil.example",
        "/sign-in?next=//evil.example",
        "/sign-out",
        "",
    ],
)
def test_the_sign_in_leads_to_no_other_place(root: str, path: str) -> None:
    assert way_back(path, root) == f"{root}/"
    assert way_back(f"{root}{path}", root) == f"{root}/"


def test_pages_below_a_path_are_not_left() -> None:
    assert way_back("/popmq/groups/a%252e?tab=a%5Cb", "/popmq") == "/popmq/groups/a%252e?tab=a%5Cb"
    assert [way_back(each, "/popmq") for each in ("/groups", "/popmqx/groups", "/")] == ["/popmq/"] * 3


def test_behind_a_proxy_visitors_sign_in_by_https() -> None:
    options: dict[str, Any] = {"auth": True, "admin_access_key": "root", "admin_secret": "s3cret-key"}
    for host in ("mq.example", "127.0.0.1:8082"):
        with opened(console={"hosts": frozenset({"mq.example"})}, **options) as site:
            data = {"csrf": csrf_on(site.get("/sign-in", headers={"host": host})), "access_key": "root"}
            for origin, status in (("https://mq.example", 303), ("https://evil.example", 403)):
                answer = site.browser.post(
                    "/sign-in",
                    data={**data, "secret": "s3cret-key"},
                    headers={"host": host, "origin": origin},
                    follow_redirects=False,
                )
                assert answer.status_code == status, (host, origin, answer.text)
                if status == 303:
                    assert "; secure" in answer.headers["set-cookie"].lower()


@pytest.mark.parametrize("must_sign", [None, True])
def test_strangers_do_not_make_the_server_refuse_callers(must_sign: bool | None) -> None:
    console = {"must_sign": must_sign}
    with opened(console=console, auth=True, admin_access_key="root", admin_secret="s3cret-key") as site:
        with capture_logs() as said:
            for _ in range(5):
                site.browser.get("/", follow_redirects=False)
        assert sum(each["event"] == "caller refused" for each in said) <= (must_sign is None)
        refused = site.browser.app.state.desk._answered_at  # type: ignore[attr-defined]
        assert (refused == float("-inf")) is bool(must_sign)


def test_signing_in_and_out(guarded_site: Site) -> None:
    refused = guarded_site.sign_in("root", "wrong", 403)
    assert "does not accept" in refused.text and "wrong" not in refused.text
    before = guarded_site.browser.cookies["popmq_console_8082"]
    guarded_site.sign_in("root", "s3cret-key")
    cookie = guarded_site.browser.cookies["popmq_console_8082"]
    assert cookie != before, "the token of before the sign-in must not be worth anything"
    page = guarded_site.get("/")
    assert "Sign out root" in page and "s3cret-key" not in page
    guarded_site.post("/sign-out", form_on="/")
    assert guarded_site.browser.get("/", follow_redirects=False).status_code == 303


def test_the_cookie_is_for_http_alone(guarded_site: Site) -> None:
    header = guarded_site.sign_in("root", "s3cret-key").headers["set-cookie"].lower()
    assert "httponly" in header and "samesite=lax" in header


def test_who_is_no_admin_is_told_so(guarded_site: Site) -> None:
    guarded_site.sign_in("root", "s3cret-key")
    guarded_site.post("/users", 200, access_key="bob", secret="bobs-secret")
    guarded_site.browser.cookies.clear()
    assert "no admin" in guarded_site.sign_in("bob", "bobs-secret", 403).text


def test_guessing_is_slow(guarded_site: Site) -> None:
    for _ in range(10):
        guarded_site.sign_in("root", "wrong", 403)
    assert "wait a minute" in guarded_site.sign_in("root", "s3cret-key", 429).text


@pytest.mark.parametrize(("key", "secret"), [("k" * 70_000, "s"), ("root", "s" * 70_000)])
def test_a_key_that_no_header_carries_is_refused_at_once(guarded_site: Site, key: str, secret: str) -> None:
    assert "at most 256 characters" in guarded_site.sign_in(key, secret, 400).text


def test_guesses_at_one_time_count_too() -> None:
    sessions = Sessions(Settings(ClientConfig("127.0.0.1:1")))
    assert all(sessions.try_key("10.0.0.1", "root") for _ in range(TRIES_MAX)), "none of them is decided yet"
    assert sessions.try_key("10.0.0.1", "root") is None


def test_who_guesses_locks_out_nobody_else() -> None:
    sessions = Sessions(Settings(ClientConfig("127.0.0.1:1")))
    for _ in range(TRIES_MAX):
        sessions.try_key("10.0.0.1", "root")
    assert sessions.try_key("10.0.0.2", "root") is not None
    assert all(sessions.try_key(f"2001:db8::{each}", "root") for each in range(TRIES_MAX))
    assert sessions.try_key("2001:db8::a:b", "root") is None, "it is of the same network"
    assert sessions.try_key("10.0.0.1", "alice") is not None


def test_guesses_from_many_addresses_are_slow_and_leave_known_ones_alone() -> None:
    now = [0.0]
    sessions = Sessions(Settings(ClientConfig("127.0.0.1:1")), lambda: now[0])
    mine = sessions.try_key("10.1.1.1", "root")
    assert mine is not None
    sessions.signed_in(mine)
    for each in range(TRIES_OF_KEY_MAX):
        assert sessions.try_key(f"10.0.0.{each}", "root") is not None
    assert sessions.try_key("10.0.1.1", "root") is None
    assert sessions.try_key("10.1.1.1", "root") is not None
    now[0] = TRIES_S
    assert sessions.try_key("10.0.1.1", "root") is not None


def test_a_right_secret_and_a_server_that_does_not_answer_are_no_guess() -> None:
    sessions = Sessions(Settings(ClientConfig("127.0.0.1:1")))
    for _ in range(2 * TRIES_MAX):
        attempt = sessions.try_key("10.0.0.1", "root")
        assert attempt is not None
        sessions.no_guess(attempt)


def test_a_session_that_may_only_look_shows_no_action_and_does_none(guarded_site: Site) -> None:
    guarded_site.sign_in("root", "s3cret-key", read_only="1")
    page = guarded_site.get("/users")
    assert "read only" in page and "Create" not in page
    answer = guarded_site.post("/users", 403, form_on="/", access_key="eve", secret="x")
    assert "may look, and change nothing" in answer.text


def test_a_console_that_only_shows(site: Site) -> None:
    with opened(console={"read_only": True}) as site:
        assert "read only" in site.get("/")


async def test_sessions_end() -> None:
    now = [0.0]
    sessions = Sessions(Settings(ClientConfig("127.0.0.1:1"), idle_s=60, session_s=150), lambda: now[0])
    admin = Admin(ClientConfig("127.0.0.1:1"))
    token = sessions.begin(admin).token
    for moment, is_there in [(59, True), (118, True), (149, True), (150, False)]:
        now[0] = float(moment)
        assert (sessions.find(token, renew=True) is not None) is is_there, moment
    token = sessions.begin(admin).token
    now[0] += 60
    assert sessions.find(token) is None


def test_an_open_page_that_asks_by_itself_keeps_no_session(guarded_site: Site) -> None:
    guarded_site.sign_in("root", "s3cret-key")
    sessions = guarded_site.browser.app.state.desk.sessions  # type: ignore[attr-defined]
    (session,) = sessions._signed.values()
    before = session.idle_at
    guarded_site.get("/groups", headers={"hx-request": "true"})
    guarded_site.get("/activity", headers={"hx-request": "true"})
    guarded_site.get("/alive", headers={"hx-request": "true"})
    assert session.idle_at == before
    guarded_site.get("/groups")
    assert session.idle_at > before
    before = session.idle_at
    data = {"csrf": csrf_on(guarded_site.get("/topics")), "name": "orders"}
    answer = guarded_site.browser.post("/topics", data=data, headers={"hx-request": "true"})
    assert answer.json() == {"go": "/topics/orders"}
    assert session.idle_at > before


def test_two_consoles_of_a_host_have_a_cookie_each(guarded_site: Site) -> None:
    guarded_site.sign_in("root", "s3cret-key")
    guarded_site.browser.get("/sign-in", headers={"host": "127.0.0.1:9000"})
    guarded_site.browser.get("/sign-in", headers={"host": "127.0.0.1"})
    assert {"popmq_console", "popmq_console_8082", "popmq_console_9000"} <= set(guarded_site.browser.cookies)
    assert "<h1>Overview</h1>" in guarded_site.get("/")


def test_strangers_end_no_session(guarded_site: Site) -> None:
    guarded_site.sign_in("root", "s3cret-key")
    sessions = guarded_site.browser.app.state.desk.sessions  # type: ignore[attr-defined]
    signed = guarded_site.browser.cookies["popmq_console_8082"]
    for _ in range(SESSIONS_MAX):
        guarded_site.browser.cookies.clear()
        guarded_site.get("/sign-in")
    assert sessions.find(signed) is not None
    assert len(sessions._unsigned) == 0, "the form for signing in must not take memory"


async def test_those_who_need_not_sign_end_no_signed_session() -> None:
    sessions = Sessions(Settings(ClientConfig("127.0.0.1:1")))
    admin = Admin(ClientConfig("127.0.0.1:1"))
    signed = sessions.begin(admin, "root")
    unsigned = [sessions.begin(admin) for _ in range(SESSIONS_MAX + 1)]
    assert sessions.find(signed.token) is signed
    assert sessions.find(unsigned[0].token) is None
    assert sessions.find(unsigned[-1].token) is unsigned[-1]


async def test_visitors_without_a_cookie_end_no_session_of_others() -> None:
    now = itertools.count()
    sessions = Sessions(Settings(ClientConfig("127.0.0.1:1"), idle_s=1e6, session_s=1e6), lambda: float(next(now)))
    admin = Admin(ClientConfig("127.0.0.1:1"))
    elsewhere = sessions.begin(admin, address="2001:db8::1")  # has not come back yet
    kept = sessions.begin(admin, address="2001:db8:0:1::1")
    assert sessions.find(kept.token) is kept
    for each in range(SESSIONS_MAX):
        sessions.begin(admin, address=f"2001:db8:0:1::{each:x}")
    assert sessions.find(elsewhere.token) is elsewhere
    assert sessions.find(kept.token) is kept
    # Those who come back with each cookie end their own.
    for _ in range(SESSIONS_MAX):
        sessions.find(sessions.begin(admin, address="192.0.2.1").token)
    assert sessions.find(elsewhere.token) is elsewhere


def test_the_form_of_another_stranger_signs_nobody_in(guarded_site: Site) -> None:
    foreign = csrf_on(guarded_site.get("/sign-in"))
    guarded_site.browser.cookies.clear()
    guarded_site.get("/sign-in")
    data = {"csrf": foreign, "access_key": "root", "secret": "s3cret-key"}
    assert guarded_site.browser.post("/sign-in", data=data, follow_redirects=False).status_code == 403


def test_a_disabled_user_sees_nothing_more(guarded_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even what others asked the server for."""
    monkeypatch.setattr(sessions_module, "CHECK_S", 0.0)
    make_admin_bob(guarded_site)
    with guarded_site.another() as bob:
        bob.sign_in("bob", "bobs-secret")
        bob.get("/groups")
        guarded_site.post("/users/bob", form_on="/users/bob", what="disable")
        guarded_site.get("/")
        for path in ("/", "/groups", "/activity"):
            answer = bob.browser.get(path, follow_redirects=False)
            assert (answer.status_code, answer.headers["location"][:8]) == (303, "/sign-in"), path


def test_who_is_no_admin_any_more_signs_out(guarded_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "CHECK_S", 0.0)
    make_admin_bob(guarded_site)
    with guarded_site.another() as bob:
        bob.sign_in("bob", "bobs-secret")
        csrf = csrf_on(bob.get("/groups"))
        config = ClientConfig(guarded_site.broker.endpoint, access_key="root", access_secret="s3cret-key")
        with popclient.admin.Admin(config) as admin:
            admin.delete_user("bob")
            admin.create_user("bob", "bobs-secret")
        assert bob.browser.get("/groups", follow_redirects=False).status_code == 403
        answer = bob.browser.post("/sign-out", data={"csrf": csrf}, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
        assert bob.browser.get("/sign-in", follow_redirects=False).status_code == 200


async def test_an_accepted_user_is_asked_for_seldom(guarded_site: Site) -> None:
    now = [0.0]
    sessions = Sessions(Settings(ClientConfig(guarded_site.broker.endpoint)), lambda: now[0])
    config = ClientConfig(guarded_site.broker.endpoint, access_key="root", access_secret="wrong")
    async with Admin(config) as admin:
        session = sessions.begin(admin, "root")
        now[0] = CHECK_S - 0.1
        await sessions.check(session)
        now[0] = CHECK_S
        with pytest.raises(Unauthorized):
            await sessions.check(session)


def test_what_a_page_can_do_without_does_not_hide_who_may_not_look(guarded_site: Site) -> None:
    """The user is disabled between the page's first question and its second."""
    make_admin_bob(guarded_site)
    with guarded_site.another() as bob:
        bob.sign_in("bob", "bobs-secret")
        bob.get("/users")
        guarded_site.post("/users/bob", form_on="/users/bob", what="disable")
        answer = bob.browser.get("/users?who=bob&name=orders", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"][:8]) == (303, "/sign-in")


async def test_the_pulse_goes_on_without_a_visitor_who_is_refused(guarded_site: Site) -> None:
    endpoint = guarded_site.broker.endpoint
    pulse = Pulse("", 0.01)
    async with (
        Admin(ClientConfig(endpoint, access_key="root", access_secret="s3cret-key")) as root,
        Admin(ClientConfig(endpoint, access_key="root", access_secret="wrong")) as refused,
    ):
        await pulse.now(root)
        with pytest.raises(Unauthorized):
            await pulse.fresh(refused)
        pulse._looked_at[refused] = pulse._monotonic()  # who was accepted when it looked
        try:

            async def has_gone_on() -> bool:
                return refused not in pulse._looked_at and pulse._status is not None

            await eventually(has_gone_on, "an answer to another visitor", within_s=20)
            assert root in pulse._looked_at and pulse._task is not None and not pulse._task.done()
        finally:
            await pulse.close()


def make_admin_bob(site: Site) -> None:
    site.sign_in("root", "s3cret-key")
    site.post("/users", 200, access_key="bob", secret="bobs-secret", is_admin="1")


def test_an_ended_session_leads_to_the_sign_in(guarded_site: Site) -> None:
    guarded_site.sign_in("root", "s3cret-key")
    desk = guarded_site.browser.app.state.desk  # type: ignore[attr-defined]
    desk.sessions._signed.clear()
    assert guarded_site.browser.get("/", follow_redirects=False).headers["location"] == "/sign-in"


def test_others_do_not_reach_a_server_without_users() -> None:
    with opened(console={"is_public": True}) as site:
        assert "has no users" in site.get("/", 403)


def test_a_server_that_is_not_there() -> None:
    with browsing(Settings(ClientConfig("127.0.0.1:1"))) as browser:
        answer = browser.get("/")
        assert (answer.status_code, "127.0.0.1:1" in answer.text) == (502, True)


def test_the_environments_user_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The console must not sign for a visitor with the credentials of who started it."""
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "root")
    monkeypatch.setenv("ROCKETMQ_ACCESS_SECRET", "s3cret-key")
    with opened(auth=True, admin_access_key="root", admin_secret="s3cret-key") as site:
        assert site.browser.get("/", follow_redirects=False).status_code == 303


async def test_who_leaves_before_the_form_is_refused_and_not_a_failure() -> None:
    async def left() -> dict[str, str]:
        return {"type": "http.disconnect"}

    with pytest.raises(Refused, match="ended before the form"):
        await form_of(Request({"type": "http", "method": "POST", "headers": []}, left))
