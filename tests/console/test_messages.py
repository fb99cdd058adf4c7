"""The page of a message: why, its life, its body; and finding it."""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime, timedelta
from html import unescape
from urllib.parse import quote

import pytest

from popclient.admin import HistoryEntry, MessageState
from popconsole.pages import messages
from popconsole.pictures.timeline import timeline_of
from popport.serving import HEAD_BYTES_MAX
from popproto.v2 import definition_pb2 as pb
from popserver.administration import find
from popserver.model.topic import QUEUE_COUNT_MAX
from tests.console.site import Site
from tests.support.admin_server import AdminServer, named

BEGIN = datetime(2026, 11, 20, tzinfo=UTC)


def made(admin_server: AdminServer) -> None:
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=1, accept_message_types=[pb.NORMAL, pb.FIFO])
    admin_server.make_group("arrivals", max_attempts=2, history="all")


def test_every_step_of_its_life(stored_site: Site, either_admin_server: AdminServer) -> None:
    made(either_admin_server)
    either_admin_server.send("flights", "m0", body=b'{"seat": "12A", "legs": [1, null, true]}', keys=["UA-17"])
    either_admin_server.receive("arrivals", "flights")
    either_admin_server.server.clock.advance("11s")
    (message,) = either_admin_server.receive("arrivals", "flights")
    either_admin_server.give_up("arrivals", "flights", message)
    page = stored_site.get("/messages/m0")
    assert "a dead letter of group 'arrivals'" in page
    assert "attempt 2" in page and "RELEASE" in page and "FORWARD_TO_DLQ" in page
    assert "dead letter 1" in page, "the lineage"
    assert "“12A”" in page and "null" in page, "JSON as a tree"
    assert "popmq why m0 --group arrivals" in page
    assert '{"seat": "12A"' in stored_site.get("/messages/m0?show=text")
    assert "7b 22 73 65" in stored_site.get("/messages/m0?show=hex")


def test_the_search_leads_to_a_message_by_its_id(site: Site, admin_server: AdminServer) -> None:
    made(admin_server)
    admin_server.send("flights", "m0")
    answer = site.browser.get("/messages?find=m0", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/messages/m0")
    assert "neither the id" in site.get("/messages?find=m1")
    admin_server.send("flights", "m1", "m2", keys=["UA-17"])
    page = site.get("/messages?find=UA-17")
    assert "/messages/m1" in page and "/messages/m2" in page and "popmq message find --key UA-17" in page


def test_a_search_goes_on_with_a_link(site: Site, admin_server: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    made(admin_server)
    admin_server.send("flights", "m0", "m1", keys=["UA 17"])
    monkeypatch.setattr(find, "EXAMINED_MAX", 1)
    page = site.get("/messages?find=UA 17")
    assert "/messages/m1" in page and "/messages/m0" not in page and "of 1 examined; there are more." in page
    page = site.get(next_link(page))
    assert "/messages/m0" in page and "/messages/m1" not in page


def next_link(page: str) -> str:
    link = re.search(r'href="([^"]+)">Go on with the next messages', page)
    assert link
    return unescape(link[1])


def test_the_link_of_a_topic_with_many_queues_is_short(
    site: Site, admin_server: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin_server.call("CreateTopic", topic=named("wide"), queue_count=QUEUE_COUNT_MAX)
    sent = [f"m{number}" for number in range(2 * QUEUE_COUNT_MAX)]
    for first in range(0, len(sent), 32):
        admin_server.send("wide", *sent[first : first + 32])
    monkeypatch.setattr(messages, "FOUND_MAX", 3)
    newest = site.get("/messages?topic=wide")
    link = next_link(newest)
    assert len(link) < HEAD_BYTES_MAX // 32, "the head of the next request has it again, as the referer"
    shown = [re.findall(r'href="/messages/(m\d+)\?topic=wide"', page) for page in (newest, site.get(link))]
    assert [len(set(each)) for each in shown] == [3, 3]
    assert not set(shown[0]) & set(shown[1])


@pytest.mark.parametrize(
    "message_id", ["a/b", "a?b#c", "a b&c=d", "//evil.example", "x/skip", "a%41", "é%", ".", "..", "~.."]
)
def test_an_id_with_any_characters_has_a_page(site: Site, admin_server: AdminServer, message_id: str) -> None:
    made(admin_server)
    admin_server.send("flights", message_id)
    answer = site.browser.get("/messages", params={"find": message_id}, follow_redirects=False)
    path = answer.headers["location"]
    assert answer.status_code == 303
    if "." not in message_id[:3]:
        assert path == f"/messages/{quote(message_id, safe='')}"
    page = site.get(path)
    assert f'<h1 class="mono">{message_id}</h1>' in page
    assert f'hx-get="{path}"' in page, "its news"
    admin_server.receive("arrivals", "flights")
    admin_server.server.clock.advance("11s")
    answer = site.post(f"{path}/skip", form_on=path, group="arrivals", confirm="arrivals", topic="flights")
    assert answer.headers["location"] == path
    assert "skips the message" in site.get(path)


def test_messages_of_a_topic_by_condition(site: Site, admin_server: AdminServer) -> None:
    made(admin_server)
    admin_server.send("flights", "m0", properties={"distance": "100"})
    admin_server.send("flights", "m1", properties={"distance": "2000"})
    page = site.get("/messages?topic=flights&where=distance > 1000")
    assert "1 message of 2 examined" in page.replace("<strong>", "").replace("</strong>", "")
    assert "/messages/m1" in page and "/messages/m0" not in page
    assert '<p class="bad" role="alert">' in site.get("/messages?topic=flights&where=distance >")
    assert "/messages/m0" in site.get("/messages?topic=flights")


def test_messages_of_a_topic_between_two_times(site: Site, admin_server: AdminServer) -> None:
    made(admin_server)
    admin_server.send("flights", "m0")
    admin_server.server.clock.advance("1h")
    admin_server.send("flights", "m1")
    noon = datetime.fromtimestamp(admin_server.server.clock.now_ms() / 1_000 - 1_800, UTC)
    written = noon.replace(tzinfo=None).isoformat(timespec="minutes")
    for asked, shown in (
        ({"since": written}, ["m1"]),
        ({"until": written}, ["m0"]),
        ({"until": f"{written}+00:00"}, ["m0"]),
        ({"since": "30m"}, ["m1"]),
        ({"since": "3d", "until": "15m"}, ["m0"]),
        ({"since": "3d"}, ["m0", "m1"]),
    ):
        page = site.get("/messages", params={"topic": "flights", **asked})
        assert [each for each in ("m0", "m1") if f"/messages/{each}?" in page] == shown, asked
    assert f"popmq message find --topic flights --since {noon.isoformat()}" in site.get(
        f"/messages?topic=flights&since={written}"
    )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"since": "yesterday"}, "'yesterday' is no time"),
        ({"until": "99999999999d"}, "how long ago: 15m, 6h, 3d"),
        ({"since": "0001-01-01T00:00+14:00"}, "is no time"),
        ({"since": "1h", "until": "2h"}, "exchange the two times"),
    ],
)
def test_times_that_cannot_be_searched(site: Site, admin_server: AdminServer, asked: dict[str, str], said: str) -> None:
    made(admin_server)
    page = site.get("/messages", params={"topic": "flights", **asked})
    assert said in page
    assert all(f'value="{each}"' in page for each in asked.values()), "what was written is still there"


def test_a_message_is_skipped_by_its_page(stored_site: Site, either_admin_server: AdminServer) -> None:
    made(either_admin_server)
    either_admin_server.send("flights", "m0")
    either_admin_server.receive("arrivals", "flights")
    either_admin_server.server.clock.advance("11s")
    stored_site.post("/messages/m0/skip", 400, form_on="/messages/m0", group="arrivals", confirm="")
    stored_site.post("/messages/m0/skip", form_on="/messages/m0", group="arrivals", confirm="arrivals", topic="flights")
    page = stored_site.get("/messages/m0")
    assert "skips the message" in page and "SKIP" in page


def test_a_held_message_is_skipped_by_force(site: Site, admin_server: AdminServer) -> None:
    made(admin_server)
    admin_server.send("flights", "m0")
    admin_server.receive("arrivals", "flights")
    page = site.get("/messages/m0")
    assert "its ack will be refused" in page
    fields = {"group": "arrivals", "confirm": "arrivals", "topic": "flights", "force": "1"}
    site.post("/messages/m0/skip", 303, form_on="/messages/m0", **fields)
    assert "COMMIT" in site.get("/messages/m0")


def test_a_body_that_is_no_text(site: Site, admin_server: AdminServer) -> None:
    made(admin_server)
    admin_server.send("flights", "m0", body=bytes(range(256)))
    page = site.get("/messages/m0")
    assert "000000  00 01 02" in page and "show=text" not in page


def test_a_message_that_is_not_there(site: Site) -> None:
    assert "Not found" in site.get("/messages/none", 404)


def at(seconds: float, event: str, before: str, after: str, attempt: int = 1) -> HistoryEntry:
    return HistoryEntry(BEGIN + timedelta(seconds=seconds), "g", event, before, after, attempt, "till-1", "because")


def test_the_picture_keeps_the_order_of_all_steps() -> None:
    steps = [
        at(0.001, "RECEIVE", "READY", "INFLIGHT"),
        at(0.005, "RETRY", "INFLIGHT", "WAITING_RETRY"),
        at(7_200, "BACKOFF_ELAPSED", "WAITING_RETRY", "READY"),
        at(7_200, "RECEIVE", "READY", "INFLIGHT", 2),
        at(7_201, "ACK", "INFLIGHT", "COMMIT", 2),
    ]
    state = MessageState("g", "COMMIT", 2, None, "")
    (lane,) = timeline_of([state], steps, BEGIN, BEGIN + timedelta(days=1)).lanes
    assert [each.look for each in lane.segments] == ["line", "bar", "dots", "line", "bar"]
    ends = [(each.x, each.x + each.width) for each in lane.segments]
    assert all(before[1] <= after[0] + 0.2 for before, after in itertools.pairwise(ends))
    assert ends[1][1] - ends[1][0] > 10, "four milliseconds beside two hours can be seen"
    assert [(each.colour, each.shape) for each in lane.marks] == [("commit", "●")]


def test_the_picture_says_what_the_history_does_not_know() -> None:
    (lane,) = timeline_of([MessageState("g", "COMMIT", 0, None, "")], [], BEGIN, BEGIN + timedelta(seconds=9)).lanes
    assert [each.is_sure for each in lane.segments] == [False]
    (lane,) = timeline_of(
        [MessageState("g", "DLQ", 1, None, "")],
        [at(5, "EXHAUST", "INFLIGHT", "DLQ")],
        BEGIN,
        BEGIN + timedelta(seconds=9),
    ).lanes
    assert [(each.look, each.is_sure) for each in lane.segments] == [("bar", False)]


def test_a_hold_reaches_into_the_future() -> None:
    now = BEGIN + timedelta(seconds=5)
    state = MessageState("g", "INFLIGHT", 1, now + timedelta(seconds=20), "till-1")
    timeline = timeline_of([state], [at(1, "RECEIVE", "READY", "INFLIGHT")], BEGIN, now)
    assert [each.is_future for each in timeline.lanes[0].segments] == [False, False, True]
    assert timeline.now_x is not None
