"""Nothing is cut, and nothing is wider than its card, on any page: with long names and many rows, at three widths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from starlette.routing import Match, Route

from popclient import SimpleConsumer
from popclient.admin import DeadLetterSelection, MirrorReport
from popclient.config import ClientConfig
from popconsole.app import routes_of
from popconsole.desk import Desk
from popconsole.settings import Settings
from tests.browser.conftest import console
from tests.browser.world import PAGES, World, world

pytestmark = pytest.mark.browser

Open = Callable[..., Any]
WIDTHS = (360, 768, 1280)
TOPIC = "flights_arrivals_international_terminal-3_eu-central-1_production_v2"
GROUP = "billing-and-invoicing_of_international_flights_eu-central-1_production"
LITE = "session-of_a_customer_with_a_long_name_eu-central-1_4711-4712"
USER = "service-account-of-billing-and-invoicing-eu-central-1"
REASON = "java.util.concurrent.CompletionException:com.example.billing.invoices.InvoiceNumberIsNotUniqueException"

SCRIPT = Path(__file__).with_name("widths.js").read_text()


@pytest.fixture(scope="module")
def long() -> Iterator[World]:
    """The flights, and beside them names as long as people have them, and many of them."""
    with world() as made:
        crowd(made)
        yield made


def crowd(made: World) -> None:
    made.admin.create_topic(TOPIC, queue_count=16, accept_message_types=["NORMAL", "FIFO", "DELAY"])
    made.admin.create_group(GROUP, max_attempts=1, history="all")
    made.admin.create_topic("sessions", queue_count=2, accept_message_types=["LITE"])
    made.producer.send("sessions", "hello", lite_topic=LITE)
    made.admin.create_user(USER)
    for name in (TOPIC, f"{TOPIC}-of-another-region*"):
        made.admin.add_policy(USER, "ALLOW", ["PUB", "SUB"], "TOPIC", name)
    for number in range(60):
        made.admin.create_topic(f"{TOPIC}-{number}", queue_count=1)
    made.producer.send(
        TOPIC,
        '{"invoice": "' + "9" * 300 + '"}',
        tag="INTERNATIONAL_ARRIVAL_OF_A_TRANSFER_FLIGHT",
        keys=["booking-4711-4712-4713-4714-4715-4716", "passenger-name-record-KLM-20261120-XK2J9P"],
        properties={"x-correlation-id-of-the-upstream-system": "7d3c4b4e" * 12},
    )
    for number in range(80):
        made.producer.send(TOPIC, f"invoice {number}", message_group=f"customer-of-the-region-{number}-{'x' * 30}")
    sides = "popmq-1.eu-central-1.example.com:8081", "rocketmq-proxy.eu-central-1.example.com:8081"
    made.admin.report_mirror(MirrorReport("nightly-move", *sides, TOPIC, GROUP, "one", "ship", sentence=REASON * 2))
    with SimpleConsumer(made.endpoint, GROUP, TOPIC, invisible_duration=3_600) as consumer:
        held = [message for _ in range(4) for message in consumer.receive(32)]
    letters = made.admin.list_dead_letters("arrivals", max_messages=6).dead_letters
    made.admin.plan_redrive(DeadLetterSelection("arrivals", ids=[each.id for each in letters]), reason=REASON * 3)
    assert held


@pytest.fixture(scope="module")
def at(long: World) -> Iterator[str]:
    with console(Settings(ClientConfig(long.endpoint), sample_s=1.0)) as (address, _):
        yield address


def pages(made: World) -> list[str]:
    """Every page, with what is long on it."""
    plan = made.admin.redrive_plans()[0].plan_id
    found = made.admin.find_messages(topic=TOPIC, tag="INTERNATIONAL_ARRIVAL_OF_A_TRANSFER_FLIGHT").messages
    client = made.admin.list_clients("arrivals")[0].client_id
    tabs = ("holds", "queues", "members", "message-groups", "policy", "activity")
    return [
        *PAGES.values(),
        *(f"/groups/{GROUP}?tab={tab}" for tab in tabs),
        f"/groups/{GROUP}/reset?topic={TOPIC}&to=BEGINNING",
        f"/groups/{GROUP}/delete",
        f"/messages?topic={TOPIC}",
        f"/messages?find={TOPIC[:30]}",
        f"/messages/{found[0].message_id}",
        f"/messages/{made.a_dead_letter()}",
        f"/topics/{TOPIC}",
        f"/topics/{TOPIC}/delete",
        "/scheduled?topic=reminders",
        f"/redrives/{plan}",
        f"/clients/{quote(client, safe='')}",
        f"/groups/{GROUP * 3}",
        "/no/such/page",
        "/sign-in",
        "/topics/sessions/lite",
        f"/topics/sessions/lite/{LITE}",
        f"/users/{USER}",
        "/mirrors",
        f"/topics/{TOPIC}?minutes=10080",
        f"/groups/{GROUP}?tab=activity&minutes=1440",
    ]


# Addresses that answer scripts and programs, not people.
NO_PAGES = {
    "/alive",
    "/activity",
    "/groups/{group}/activity",
    "/topics/{topic}/activity",
    "/dead-letters/{group}/export",
}


def test_every_page_is_looked_at(long: World) -> None:
    """A page that is added to the console fails here until its width is looked at too."""
    looked_at = [urlsplit(each).path for each in pages(long)]
    routes = [each for each in routes_of(Desk(Settings(ClientConfig(long.endpoint)))) if isinstance(each, Route)]
    unseen = [
        each.path
        for each in routes
        if "GET" in (each.methods or ())
        and each.path not in NO_PAGES
        and not any(_is_of(each, path, routes) for path in looked_at)
    ]
    assert unseen == []


def _is_of(route: Route, path: str, routes: Sequence[Route]) -> bool:
    """Whether the path is answered by this route: the first one that matches."""
    scope = {"type": "http", "method": "GET", "path": path, "root_path": ""}
    return next((each for each in routes if each.matches(scope)[0] is Match.FULL), None) is route


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_its_place(open_page: Open, at: str, long: World, width: int) -> None:
    page = open_page(at, may_fail=True, viewport={"width": width, "height": 900})
    wrong = {}
    for path in pages(long):
        page.goto(at + path)
        if found := page.evaluate(f"{SCRIPT}.wide()") + page.evaluate(f"{SCRIPT}.uneven()"):
            wrong[path] = found
    assert wrong == {}
