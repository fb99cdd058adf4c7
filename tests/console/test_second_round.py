"""The search, pages of lists, cancelling, types of topics, pages that are not there."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from popconsole.pages import redrives, topics
from popproto.v2 import definition_pb2 as pb
from popserver.model.retry import SECOND_MS
from tests.console.site import Site
from tests.support.admin_server import AdminServer, named


@pytest.fixture
def made(admin_server: AdminServer) -> AdminServer:
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=1, accept_message_types=[pb.NORMAL])
    admin_server.make_group("arrivals", history="all")
    admin_server.send("flights", *(f"m{number}" for number in range(6)))
    return admin_server


def test_the_search_finds_groups_and_topics(site: Site, made: AdminServer) -> None:
    page = site.get("/messages?find=ARR")
    assert "/groups/arrivals" in page and "No message matches" not in page
    assert "/topics/flights" in site.get("/messages?find=light")
    assert "No message matches" in site.get("/messages?find=nothing-like-it")
    site.get("/messages?find=m1")
    assert site.browser.get("/messages?find=m1", follow_redirects=False).headers["location"] == "/messages/m1"


def test_a_redrive_is_listed_page_by_page(site: Site, made: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrives, "SHOWN", 2)
    for message in made.receive("arrivals", "flights", 5):
        made.give_up("arrivals", "flights", message)
    site.post("/dead-letters/arrivals/plan", form_on="/dead-letters/arrivals")
    (plan,) = set(re.findall(r"/redrives/([\w-]+)", site.get("/dead-letters")))
    path, seen, pages = f"/redrives/{plan}", list[str](), 0
    while path:
        page, pages = site.get(path), pages + 1
        seen += re.findall(r'<td class="num"><a href="/dead-letters/arrivals/(\d+)"', page)
        path = "".join(re.findall(rf'href="(/redrives/{plan}\?after=\d+)">Next', page))
    assert (pages, len(seen), len(set(seen))) == (3, 5, 5)
    assert ">First<" in page


def test_scheduled_messages_have_pages(site: Site, admin_server: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "SCHEDULED_SHOWN", 2)
    admin_server.call("CreateTopic", topic=named("reminders"), accept_message_types=[pb.DELAY])
    for number in range(5):
        due = site.broker.clock.now_ms() + 3_600 * SECOND_MS * (1 + number // 3)  # some at one time
        admin_server.send("reminders", f"r{number}", delivery_timestamp=datetime.fromtimestamp(due / 1_000, UTC))
    path, seen = "/scheduled?topic=reminders", list[str]()
    while path:
        page = site.get(path)
        seen += re.findall(r'value="reminders (r\d)"', page)
        path = "".join(re.findall(r'href="(/scheduled\?[^"]*after=[^"]*)">Next', page))
    assert seen == [f"r{number}" for number in range(5)]
    assert "3 more messages are due later" in site.get("/scheduled")
    assert "after is 'x'" in site.get("/scheduled?topic=reminders&after=x", 400)


def test_a_half_message_is_given_up(site: Site, admin_server: AdminServer) -> None:
    admin_server.call("CreateTopic", topic=named("payments"), accept_message_types=[pb.TRANSACTION])
    admin_server.send("payments", "half", message_type=pb.TRANSACTION)
    site.post("/scheduled/cancel", form_on="/scheduled", id="payments half")
    assert "No transaction is undecided" in site.get("/scheduled")


@pytest.mark.parametrize("kind", topics.TYPES)
def test_every_type_of_topic_is_made_and_gets_a_message(site: Site, admin_server: AdminServer, kind: str) -> None:
    assert f'value="{kind}"' in site.get("/topics")
    site.post("/topics", name="things", queues="2", type=kind)
    fields: dict[str, Any] = {
        "FIFO": {"message_group": "g"},
        "PRIORITY": {"priority": "7"},
        "LITE": {"lite_topic": "t1"},
    }.get(kind, {})
    if kind not in ("TRANSACTION", "DELAY"):  # the server's clock stands still, the console's does not
        site.post("/topics/things/publish", form_on="/topics/things", body="x", **fields)
    if kind == "PRIORITY":
        refused = site.post("/topics/things/publish", 400, form_on="/topics/things", body="x", priority="high")
        assert "priority: 'high' is no whole number" in html.unescape(refused.text)


def test_a_page_that_is_not_there_leads_on(site: Site) -> None:
    page = site.get("/no/such/page", 404)
    assert "There is no page /no/such/page" in page and 'action="/messages"' in page
    assert "There is no page /sign-out" in site.get("/sign-out", 405)
    for path, right in (("/groups/", "/groups"), ("//evil.example/", "/evil.example")):
        answer = site.browser.get(f"http://127.0.0.1:8082{path}", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (307, right)
    by_script = site.browser.get("/groups/none", headers={"hx-request": "true"})
    assert by_script.json()["sentence"].startswith("consumer group 'none' does not exist")


def test_users_of_a_server_that_asks_nobody_are_explained(site: Site, guarded_site: Site) -> None:
    page = site.get("/users")
    assert "runs without <code>--auth</code>" in page and 'name="access_key"' not in page
    guarded_site.sign_in("root", "s3cret-key")
    assert 'name="access_key"' in guarded_site.get("/users")
