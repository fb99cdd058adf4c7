"""Long lists have pages: each row is on one of them."""

from __future__ import annotations

import re

import pytest

from popconsole import paging
from popproto.v2 import definition_pb2 as pb
from tests.console.site import Site
from tests.support.admin_server import AdminServer, named


@pytest.fixture(autouse=True)
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "PAGE", 3)
    monkeypatch.setattr("popconsole.pages.groups.PAGE", 3)


def walk(site: Site, path: str, row: str) -> list[list[str]]:
    """The rows of each page, by the links to the next one and back."""
    found, here = list[list[str]](), path
    while here:
        page = site.get(here)
        found.append(re.findall(row, page))
        here = "".join(re.findall(r'href="([^"]+)">Next</a>', page)[:1])
        assert len(found) < 50
    if len(found) > 1:
        back = re.findall(r'href="([^"]+)">Before</a>', page)
        assert re.findall(row, site.get(back[0])) == found[-2]
    return found


def check(found: list[list[str]], rows: int) -> None:
    assert [len(each) for each in found] == [3] * (rows // 3) + [rows % 3] * bool(rows % 3)
    assert len({each for page in found for each in page}) == rows


def test_topics_groups_and_queues(site: Site, admin_server: AdminServer) -> None:
    for number in range(7):
        admin_server.call("CreateTopic", topic=named(f"t{number}"), queue_count=8, accept_message_types=[pb.NORMAL])
        admin_server.make_group(f"g{number}")
    check(walk(site, "/topics", r'<td class="name"><a href="/topics/(t\d)">'), 7)
    check(walk(site, "/topics?name=T", r'<td class="name"><a href="/topics/(t\d)">'), 7)
    check(walk(site, "/groups", r'<a href="/groups/(g\d)">'), 7)
    check(walk(site, "/topics/t1", r'<li><a href="/topics/t1\?queue=(\d)"'), 8)


def test_what_a_group_holds(site: Site, admin_server: AdminServer) -> None:
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=7, accept_message_types=[pb.NORMAL])
    admin_server.make_group("radar")
    admin_server.send("flights", *(f"m{number}" for number in range(10)))
    held = admin_server.receive("radar", "flights", 10)
    check(walk(site, "/groups/radar", r'data-copy="(m\d)"'), len(held))
    assert "1 to 3 of more" in site.get("/groups/radar"), "only so many are asked for"
    check(walk(site, "/groups/radar?tab=queues", r'href="/topics/flights\?queue=(\d)"'), 7)
    check(walk(site, "/topics/flights?queue=0", r'<li><a href="/topics/flights\?queue=(\d)"'), 7)


def test_a_list_that_has_become_shorter_shows_its_end(site: Site, admin_server: AdminServer) -> None:
    for number in range(4):
        admin_server.call("CreateTopic", topic=named(f"t{number}"), accept_message_types=[pb.NORMAL])
    page = site.get("/topics?from=300")
    assert "t3" in page and "4 to 4 of 4" in page
    assert site.get("/topics?from=x", 400)


def test_users_and_policies(guarded_site: Site) -> None:
    guarded_site.sign_in("root", "s3cret-key")
    for number in range(6):
        guarded_site.post("/users", 200, form_on="/users", access_key=f"user-{number}", secret="a-s3cret-key")
    for number in range(6):
        guarded_site.post(
            "/users/user-1/policies",
            form_on="/users/user-1",
            effect="ALLOW",
            action="PUB",
            kind="TOPIC",
            pattern=f"p{number}",
        )
    check(walk(guarded_site, "/users", r'<td class="name"><a href="/users/([\w-]+)">'), 7)
    check(walk(guarded_site, "/users/user-1", r"<code>(p\d)</code>"), 6)
