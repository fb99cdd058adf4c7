"""Dead letters on their pages: counted, selected, planned, sent back at a rate, repaired, exported, deleted."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from popclient.aio import Admin
from popconsole.pages.dead_letters import KINDS_MAX
from popproto.v2 import definition_pb2 as pb
from tests.console.site import Site
from tests.support.admin_server import AdminServer, named
from tests.support.waiting import soon


def die(
    admin_server: AdminServer, *message_ids: str, tag: str = "UA", body: bytes = b"body", **properties: str
) -> None:
    """Messages that group `arrivals` gives up."""
    admin_server.send("flights", *message_ids, body=body, properties=properties, tag=tag)
    for message in admin_server.receive("arrivals", "flights"):
        admin_server.give_up("arrivals", "flights", message)


@pytest.fixture
def made(either_admin_server: AdminServer) -> AdminServer:
    either_admin_server.call("CreateTopic", topic=named("flights"), queue_count=1, accept_message_types=[pb.NORMAL])
    either_admin_server.make_group("arrivals", max_attempts=2, history="all")
    return either_admin_server


def plan_of(site: Site, **fields: Any) -> str:
    """Make a plan on the group's page; returns the path of its page."""
    answer = site.post("/dead-letters/arrivals/plan", form_on="/dead-letters/arrivals", **fields)
    return str(answer.headers["location"])


def test_they_are_counted_by_kind_and_selected(stored_site: Site, made: AdminServer) -> None:
    die(made, "m0", "m1", tag="UA", distance="100")
    die(made, "m2", tag="O'Hare", distance="2000")
    page = stored_site.get("/dead-letters/arrivals")
    assert "m0" in page and "m2" in page and "tag=UA" in page
    page = stored_site.get("/dead-letters/arrivals?tag=O'Hare")
    assert "/messages/m2" in page and "/messages/m0" not in page
    assert "TAGS = 'O''Hare'" in page.replace("'\"'\"'", "'"), "the same selection for a shell"
    page = stored_site.get("/dead-letters/arrivals?where=distance > 1000")
    assert "/messages/m2" in page and "/messages/m0" not in page
    assert '<p class="bad" role="alert">' in stored_site.get("/dead-letters/arrivals?where=distance >")
    assert "3" in stored_site.get("/dead-letters")
    stored_site.get("/dead-letters/nobody", 404)


def test_kinds_that_are_not_shown_are_counted(stored_site: Site, made: AdminServer) -> None:
    for number in range(KINDS_MAX + 2):
        die(made, f"m{number}", tag=f"T{number}")
    page = stored_site.get("/dead-letters/arrivals")
    assert page.count('<span class="what">T') == KINDS_MAX
    assert '<p class="said">and 2 more</p>' in page
    assert ", 1 reason." in page


def test_a_plan_moves_nothing_and_its_run_sends_all_back(stored_site: Site, made: AdminServer) -> None:
    die(made, "m0", "m1", "m2")
    path = plan_of(stored_site, why="the feed is fixed")
    page = stored_site.get(path)
    assert "3 messages" in page and "Nothing has moved yet" in page and "the feed is fixed" in page
    assert made.receive("arrivals", "flights") == []
    stored_site.post(f"{path}/run", 400, form_on=path, confirm="departures", rate="100")
    assert made.receive("arrivals", "flights") == []
    stored_site.post(f"{path}/run", form_on=path, confirm="arrivals", rate="1000")
    soon(lambda: "done" in stored_site.get(path) and "Stop" not in stored_site.get(path))
    assert {each.system_properties.message_id for each in made.receive("arrivals", "flights")} == {"m0", "m1", "m2"}
    assert "INFLIGHT" in stored_site.get(path), "what became of them"
    assert "plan" in stored_site.get("/dead-letters")


def test_only_those_that_are_checked(stored_site: Site, made: AdminServer) -> None:
    die(made, "m0", "m1")
    number = re.findall(r'name="id" value="(\d+)"', stored_site.get("/dead-letters/arrivals"))[0]
    page = stored_site.get(plan_of(stored_site, id=number))
    assert "1 message" in page and "/messages/m0" in page and "/messages/m1" not in page


def test_a_slow_redrive_is_stopped_and_goes_on(stored_site: Site, made: AdminServer) -> None:
    die(made, *(f"m{index}" for index in range(10)))
    path = plan_of(stored_site)
    stored_site.post(f"{path}/run", form_on=path, confirm="arrivals", rate="0.5")
    soon(lambda: re.search(r"sent <b>[1-9]</b>", stored_site.get(path)) is not None)
    assert "running" in stored_site.get(path)
    stored_site.post(f"{path}/stop", form_on=path)
    page = stored_site.get(path)
    assert re.search(r"planned <b>[1-9]</b>", page) and "Go on" in page
    stored_site.post(f"{path}/run", form_on=path, confirm="arrivals", rate="")
    soon(lambda: "sent <b>10</b>" in stored_site.get(path))


def test_a_redrive_that_fails_says_so(
    site: Site, admin_server: AdminServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def run_redrive(*_: object, **__: object) -> None:
        raise KeyError("a defect")

    admin_server.make_group("arrivals")
    die(admin_server, "m0")
    path = plan_of(site)
    monkeypatch.setattr(Admin, "run_redrive", run_redrive)
    site.post(f"{path}/run", form_on=path, confirm="arrivals", rate="")
    soon(lambda: "has failed with KeyError" in site.get(path))
    assert "a defect" in caplog.text


def test_a_plan_is_cancelled(stored_site: Site, made: AdminServer) -> None:
    die(made, "m0")
    path = plan_of(stored_site)
    stored_site.post(f"{path}/cancel", form_on=path)
    page = stored_site.get(path)
    assert "cancelled" in page and "/run" not in page


@pytest.mark.parametrize("rate", ["0", "-3", "fast", "nan", "inf", "1e99"])
def test_a_rate_that_is_none(site: Site, admin_server: AdminServer, rate: str) -> None:
    admin_server.make_group("arrivals")
    die(admin_server, "m0")
    path = plan_of(site)
    assert "no rate" in site.post(f"{path}/run", 400, form_on=path, confirm="arrivals", rate=rate).text


def test_one_letter_is_repaired_after_its_differences_were_seen(stored_site: Site, made: AdminServer) -> None:
    die(made, "m0", body=b"gate: NaN", distance="5")
    number = re.findall(r'name="id" value="(\d+)"', stored_site.get("/dead-letters/arrivals"))[0]
    page, path = f"/dead-letters/arrivals/{number}", f"/dead-letters/arrivals/{number}/repair"
    fields: dict[str, Any] = {"body": "gate: 7", "tag": "UA", "keys": "", "properties": "distance=5", "why": "typo"}
    seen = stored_site.post(path, 200, form_on=page, **fields).text
    assert "- gate: NaN" in seen and "+ gate: 7" in seen and "1 change" in seen
    assert made.receive("arrivals", "flights") == []
    stored_site.post(path, form_on=page, confirm="arrivals", **fields)
    (message,) = made.receive("arrivals", "flights")
    assert message.body == b"gate: 7" and message.user_properties["distance"] == "5"
    page = stored_site.get(page)
    assert "repaired" in page and "INFLIGHT" in page, "the lineage"


def test_a_long_body_is_not_compared(site: Site, admin_server: AdminServer) -> None:
    admin_server.make_group("arrivals")
    die(admin_server, "m0", body=b"a\n" * 999)
    page = "/dead-letters/arrivals/1"
    seen = site.post(f"{page}/repair", 200, form_on=page, body="a\n" * 998 + "b").text
    assert "+ b" in seen
    seen = site.post(f"{page}/repair", 200, form_on=page, body="a\n" * 1_000 + "b").text
    assert "are not compared" in seen and "+ b" not in seen


def test_export_is_one_object_a_line(stored_site: Site, made: AdminServer) -> None:
    die(made, "m0", "m1", body=b"\xff\x00")
    answer = stored_site.browser.get("/dead-letters/arrivals/export")
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert [row["message_id"] for row in rows] == ["m0", "m1"]
    assert rows[0]["body_base64"] == "/wA=" and "attachment" in answer.headers["content-disposition"]


def test_they_are_deleted_when_the_name_is_typed(stored_site: Site, made: AdminServer) -> None:
    die(made, "m0", "m1")
    made.server.clock.advance("1s")
    page = stored_site.get("/dead-letters/arrivals/purge")
    assert "<strong>2</strong>" in page and "cannot be undone" in page
    until = until_on(page)
    stored_site.post("/dead-letters/arrivals/purge", 400, confirm="", until=until)
    stored_site.post("/dead-letters/arrivals/purge", confirm="arrivals", until=until)
    assert "No dead letters." in stored_site.get("/dead-letters/arrivals")


def test_what_dies_after_the_preview_stays(stored_site: Site, made: AdminServer) -> None:
    die(made, "m0")
    made.server.clock.advance("1s")
    page = stored_site.get("/dead-letters/arrivals/purge")
    assert "<strong>1</strong>" in page
    die(made, "m1")
    stored_site.post("/dead-letters/arrivals/purge", confirm="arrivals", until=until_on(page))
    page = stored_site.get("/dead-letters/arrivals")
    assert "/messages/m1" in page and "/messages/m0" not in page


@pytest.mark.parametrize("until", ["", "soon", "9" * 14, "-1"])
def test_a_deletion_without_a_preview_is_refused(site: Site, admin_server: AdminServer, until: str) -> None:
    admin_server.make_group("arrivals")
    die(admin_server, "m0")
    assert "preview" in site.post("/dead-letters/arrivals/purge", 400, confirm="arrivals", until=until).text
    assert "/messages/m0" in site.get("/dead-letters/arrivals")


def test_a_time_that_the_pages_do_not_offer_is_refused(site: Site, admin_server: AdminServer) -> None:
    admin_server.make_group("arrivals")
    die(admin_server, "m0")
    for page in ("", "/purge", "/export"):
        assert "since is '2d'" in site.get(f"/dead-letters/arrivals{page}?since=2d", 400)


def until_on(page: str) -> str:
    found = re.search(r'name="until" value="(\d+)"', page)
    assert found is not None
    return found[1]
