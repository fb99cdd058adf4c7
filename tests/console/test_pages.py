"""The other pages with real data: overview, groups, topics, scheduled messages, clients, users, the server."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest

from popclient import MessageView, PushConsumer
from popclient.admin import Admin
from popclient.config import ClientConfig
from popconsole import paging
from popconsole.pages import groups
from popconsole.settings import Settings
from popproto.v2 import definition_pb2 as pb
from popserver import embedded
from popserver.administration import flow as administration_flow
from popserver.administration import holds as administration_holds
from tests.console.site import Site, browsing
from tests.support.admin_server import AdminServer, named
from tests.support.waiting import soon


@pytest.fixture
def made(either_admin_server: AdminServer) -> AdminServer:
    """Group `arrivals` holds one of three messages of topic `flights`, and has given another one up."""
    either_admin_server.call(
        "CreateTopic", topic=named("flights"), queue_count=2, accept_message_types=[pb.NORMAL, pb.FIFO]
    )
    either_admin_server.make_group("arrivals", max_attempts=3, intervals_s=(10, 60), history="all")
    either_admin_server.send("flights", "a0", "a1", "a2", message_group="gate-1")
    (message,) = either_admin_server.receive("arrivals", "flights", 1)
    either_admin_server.give_up("arrivals", "flights", message)
    either_admin_server.receive("arrivals", "flights", 1)
    return either_admin_server


def test_the_overview_says_what_is_behind_and_what_to_do(stored_site: Site, made: AdminServer) -> None:
    made.server.clock.advance("2m")
    page = stored_site.get("/")
    assert "1 group, 1 is behind:" in page and "ready, oldest 2 min" in page
    assert "1 dead letter of arrivals in the last hour." in page
    assert stored_site.browser.get("/activity").json().keys() >= {"at", "in", "out", "ready", "inflight", "p50", "p99"}


def test_groups_are_listed_searched_and_sorted(stored_site: Site, made: AdminServer) -> None:
    made.make_group("billing")
    page = stored_site.get("/groups")
    assert "arrivals" in page and "Without a topic yet" in page and "billing" in page
    assert "/groups/arrivals" not in stored_site.get("/groups?name=bil")
    for by in ("ready", "inflight", "waiting", "dead", "nonsense"):
        assert "arrivals" in stored_site.get(f"/groups?by={by}")


@pytest.mark.parametrize(
    ("tab", "shown"),
    [
        ("holds", "worker-1"),
        ("queues", "See what it would do"),
        ("members", "No consumer works for this group"),
        ("message-groups", "gate-1"),
        ("policy", "tried 3 times, over 1 min 10 s of pauses"),
        ("nonsense", "worker-1"),
    ],
)
def test_every_tab_of_a_group(stored_site: Site, made: AdminServer, tab: str, shown: str) -> None:
    page = stored_site.get(f"/groups/arrivals?tab={tab}")
    assert shown in page
    assert "INFLIGHT" in page and "popmq group show arrivals" in page


def test_a_reset_is_shown_in_numbers_first(stored_site: Site, made: AdminServer) -> None:
    address = "/groups/arrivals/reset?topic=flights&to=BEGINNING"
    page = stored_site.get(address)
    assert "Goes back over 2 messages" in re.sub("</?strong>", "", page) and "1 dead letters" in page
    before = made.digest()
    stored_site.get(address)
    assert made.digest() == before, "a look changes nothing"
    fields: dict[str, Any] = {"topic": "flights", "to": "BEGINNING"}
    stored_site.post("/groups/arrivals/reset", 400, form_on=address, confirm="no", **fields)
    stored_site.post("/groups/arrivals/reset", form_on=address, confirm="arrivals", **fields)
    assert "back over 2 messages" in stored_site.get("/groups/arrivals")
    assert "no time" in stored_site.get("/groups/arrivals/reset?topic=flights&to=TIME&at=soon", 400)


def test_a_group_is_paused_and_goes_on(stored_site: Site, made: AdminServer) -> None:
    page = "/groups/arrivals?tab=policy"
    stored_site.post("/groups/arrivals/pause", 400, form_on=page, confirm="")
    stored_site.post("/groups/arrivals/pause", form_on=page, confirm="arrivals", topic="")
    assert "Nothing of it is delivered." in stored_site.get("/groups/arrivals")
    stored_site.post("/groups/arrivals/pause", form_on="/groups/arrivals", what="resume", topic="")
    assert "Nothing of it is delivered." not in stored_site.get("/groups/arrivals")


def test_long_lists_are_cut_and_say_so(site: Site, admin_server: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=1, accept_message_types=[pb.FIFO])
    admin_server.make_group("arrivals")
    for number in range(5):
        admin_server.send("flights", f"m{number}", message_group=f"gate-{number}")
    while admin_server.receive("arrivals", "flights"):
        pass
    for number in range(3):
        admin_server.call("PauseGroup", group=named("arrivals"), topic=named("flights"), message_group=f"gate-{number}")
    monkeypatch.setattr(administration_flow, "PAGE_MAX", 2)
    monkeypatch.setattr(groups, "PAUSES_MAX", 1)
    page = site.get("/groups/arrivals")
    assert page.count("Nothing of it is delivered.") == 1
    assert "And 2 more pauses." in page
    monkeypatch.setattr(administration_flow, "PAGE_MAX", 1_000)
    monkeypatch.setattr(administration_holds, "MESSAGE_GROUPS_MAX", 3)
    page = site.get("/groups/arrivals?tab=message-groups")
    assert "gate-2" in page and "gate-3" not in page
    for module in (groups, paging):
        monkeypatch.setattr(module, "PAGE", 2)
    page = site.get("/groups/arrivals?tab=message-groups")
    assert "gate-1</td>" in page and "gate-2</td>" not in page and "1 to 2 of 3" in page
    assert "gate-2</td>" in site.get("/groups/arrivals?tab=message-groups&from=2")


def test_a_topic_and_a_message_on_trial(stored_site: Site, made: AdminServer) -> None:
    page = stored_site.get("/topics/flights")
    assert "arrivals" in page and "a2" in page
    fields: dict[str, Any] = {
        "body": "line 1\r\nline 2",
        "tag": "blue",
        "keys": "k1 k2",
        "properties": "colour=red\nsize = 3",
    }
    made.call("CreateTopic", topic=named("orders"), queue_count=1)
    answer = stored_site.post("/topics/orders/publish", form_on="/topics/orders", **fields)
    page = stored_site.get(answer.headers["location"])
    assert "line 1\nline 2" in page and "blue" in page and "k1, k2" in page and "colour" in page
    refused = stored_site.post("/topics/orders/publish", 400, form_on="/topics/orders", body="x", properties="nothing")
    assert "is no property" in refused.text
    assert "needs a body" in stored_site.post("/topics/orders/publish", 400, form_on="/topics/orders").text


def test_a_topic_is_made_and_deleted(stored_site: Site) -> None:
    stored_site.post("/topics", name="orders", queues="3", type="FIFO")
    assert "0 messages in 3 queues, of FIFO" in re.sub("</?strong>", "", stored_site.get("/topics/orders"))
    assert "orders" in stored_site.post("/topics", 400, name="orders").text
    stored_site.post("/topics/orders/delete", 400, confirm="order")
    stored_site.post("/topics/orders/delete", confirm="orders")
    stored_site.get("/topics/orders", 404)


def test_what_waits_for_its_time_is_shown_and_cancelled(stored_site: Site, either_admin_server: AdminServer) -> None:
    either_admin_server.call("CreateTopic", topic=named("reminders"), accept_message_types=[pb.DELAY])
    for message_id, hours in (("soon", 1), ("late", 400)):
        due = datetime.fromtimestamp(stored_site.broker.clock.now_ms() / 1_000 + hours * 3_600, UTC)
        either_admin_server.send("reminders", message_id, delivery_timestamp=due)
    page = stored_site.get("/scheduled")
    assert "2 messages wait for their time" in page and "each column is" in page
    assert "soon" in stored_site.get("/scheduled?topic=reminders")
    refused = stored_site.post("/scheduled/cancel", 400, form_on="/scheduled").text
    assert "no message is checked" in refused
    stored_site.post("/scheduled/cancel", form_on="/scheduled", id=["reminders soon", "reminders gone"])
    page = stored_site.get("/scheduled?topic=reminders")
    assert "1 message of reminders will not be delivered. 1 other had left the schedule before." in page
    assert "reminders soon" not in page and "reminders late" in page


def test_clients_and_what_they_want(site: Site) -> None:
    def listener(_: MessageView) -> None:
        return None

    with PushConsumer(site.broker.endpoint, "arrivals", "flights", listener) as consumer:
        assert consumer.client_id.replace("@", "@<wbr>") in site.get("/clients"), "it breaks between its parts first"
        assert "PYTHON" in site.get("/clients") and "PYTHON" in site.get("/groups/arrivals?tab=members")
        page = site.get(f"/clients/{consumer.client_id}")
        assert "push consumer" in page and "What it wants" in page
        assert "Thread" not in site.get(f"/clients/{consumer.client_id}?stack=1"), "a link does not make it work"
        path = f"/clients/{quote(consumer.client_id, safe='')}"
        site.browser.get("/")  # a session
        assert site.browser.post(f"{path}/stack", data={"csrf": "guessed"}).status_code == 403
        assert "Thread" in site.post(f"{path}/stack", 200, form_on=path).text
    assert "not connected" in site.get("/clients/nobody")


def test_users_policies_and_why(guarded_site: Site) -> None:
    guarded_site.sign_in("root", "s3cret-key")
    page = guarded_site.post("/users", 200, access_key="bob", secret="").text
    assert "never again" in page
    add: dict[str, Any] = {"effect": "ALLOW", "action": "PUB", "kind": "TOPIC", "pattern": "orders*"}
    guarded_site.post("/users/bob/policies", form_on="/users/bob", **add)
    page = guarded_site.get("/users")
    assert "orders*" in page and "● PUB" in page
    assert "yes" in guarded_site.get("/users?who=bob&action=PUB&kind=TOPIC&name=orders-eu")
    assert ">no<" in guarded_site.get("/users?who=bob&action=SUB&kind=TOPIC&name=orders-eu")
    number = re.findall(r'name="policy" value="(\d+)"', guarded_site.get("/users/bob"))[0]
    guarded_site.post("/policies/remove", form_on="/users/bob", policy=number)
    guarded_site.post("/users/bob", form_on="/users/bob", what="disable")
    assert "disabled" in guarded_site.get("/users")
    guarded_site.post("/users/bob", form_on="/users/bob", what="enable")
    assert "never again" in guarded_site.post("/users/bob", 200, what="rotate").text
    guarded_site.post("/users/bob", 400, what="delete", confirm="")
    guarded_site.post("/users/bob", what="delete", confirm="bob")
    guarded_site.get("/users/bob", 404)


def test_the_server(site: Site) -> None:
    page = site.get("/server")
    assert "sqlite://" in page and "--max-connections" in page and "nothing is overdue" in page


def test_the_server_shows_the_space_of_its_database(stored_site: Site, database_url: str) -> None:
    page = stored_site.get("/server")
    assert re.search(r"<dt>Database size</dt><dd>\d", page)
    on_file = database_url.startswith("sqlite")
    assert bool(re.search(r"<dt>WAL</dt><dd>\d", page)) == on_file
    assert bool(re.search(r"<dt>Free on its disk</dt><dd>\d.* of \d", page)) == on_file
    assert "Servers of this database" not in page, "this one shares it with nobody"


def test_the_servers_of_one_postgres_are_shown(postgres_url: str) -> None:
    with embedded(postgres_url) as one, embedded(postgres_url) as other, Admin(one.endpoint) as admin:
        soon(lambda: len(admin.status().servers) == 2)
        with browsing(Settings(ClientConfig(one.endpoint), sample_s=3_600.0)) as browser:
            page = Site(one, browser).get("/server")
    assert f'<td class="name">{one.endpoint} <span class="soft">(this page shows it)' in page
    assert f'<td class="name">{other.endpoint}</td><td>running</td>' in page


def test_pages_without_anything_say_how_to_begin(site: Site) -> None:
    for path, words in {
        "/": "No group has met a topic yet",
        "/groups": "No group has met a topic yet",
        "/topics": "No topic yet",
        "/dead-letters": "No dead letters",
        "/scheduled": "No message waits for its time",
        "/clients": "No client is connected",
        "/users": "no users",
        "/messages": "Find a message by its id",
    }.items():
        assert words in site.get(path), path
