"""The console as people use it, in Chromium."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import grpc
import pytest

from popclient.config import ClientConfig
from popconsole.settings import Settings
from popserver import embedded
from tests.browser.conftest import console
from tests.browser.world import World
from tests.support.admin_server import AdminServer

pytestmark = pytest.mark.browser

Open = Callable[..., Any]
EVIL = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


def test_the_plots_draw_what_happens(open_page: Open, address: str, flights: World) -> None:
    page = open_page(address)
    flights.send_flights(20)
    for name in ("in", "out", "backlog"):
        page.wait_for_selector(f'[data-plot="{name}"] canvas')


@pytest.mark.parametrize("path", ["/topics/flights", "/groups/arrivals?tab=activity"])
def test_groups_and_topics_have_charts(open_page: Open, address: str, flights: World, path: str) -> None:
    page = open_page(address + path)
    flights.send_flights(5)
    for name, lines in (("rates", "stored"), ("lag", "ready"), ("age", "oldest"), ("delay", "99 %")):
        page.wait_for_selector(f'[data-plot="{name}"] canvas')  # with the second point, within 15 s
        assert lines in page.locator(f'[data-plot="{name}"] .u-legend').inner_text()
    page.get_by_role("link", name="7 d").click()
    page.wait_for_selector('nav.ranges [aria-current] >> text="7 d"')
    assert "a point each 1 h; times in UTC" in page.locator("nav.ranges").inner_text()


def test_messages_are_found_by_time(open_page: Open, address: str, flights: World) -> None:
    flights.producer.send("flights", "the newest", tag="timed")
    page = open_page(f"{address}/messages", viewport={"width": 360, "height": 740})
    for since, until, shown in (("15m", "", True), ("2026-01-01T00:00", "", True), ("6h", "15m", False)):
        page.get_by_label("Topic").select_option("flights")
        page.get_by_label("Tag").fill("timed")
        page.get_by_label("Stored since").fill(since)
        page.get_by_label("and before").fill(until)
        page.get_by_role("button", name="Show").click()
        page.get_by_text("examined").wait_for()
        assert page.get_by_role("cell", name="timed").is_visible() is shown, (since, until)
        assert page.get_by_label("Stored since").input_value() == since
    page.get_by_label("Stored since").fill("yesterday")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("alert").get_by_text("'yesterday' is no time").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_dead_letters_go_back_from_the_page(open_page: Open, address: str, flights: World) -> None:
    page = open_page(f"{address}/dead-letters/arrivals")
    page.locator('input[name="id"]').first.check()
    page.get_by_label("Why").fill("the feed is fixed")
    page.get_by_role("button", name="Plan it").click()
    page.get_by_text("Nothing has moved yet").wait_for()
    send = page.get_by_role("button", name="Send 1 message back")
    assert send.is_disabled(), "the name is not typed yet"
    page.locator('input[name="confirm"]').fill("arrivals")
    send.click()
    page.get_by_text("done", exact=True).first.wait_for()
    # It fails again, because the flight has not arrived meanwhile.
    page.get_by_text("died again").first.wait_for()


def test_a_hold_runs_down_and_waits_for_the_pointer(open_page: Open, address: str) -> None:
    page = open_page(f"{address}/groups/radar")
    bar = page.locator("progress[data-until]").first
    before = bar.evaluate("each => each.value")
    page.wait_for_function("value => document.querySelector('progress[data-until]').value < value", arg=before)
    page.locator("#tab").hover()
    page.evaluate("document.getElementById('tab').dataset.seen = 'yes'")
    page.wait_for_timeout(200)
    with page.expect_response(lambda response: "/groups/radar" in response.url):
        pass  # the news of the states, which the pointer is not on
    assert page.locator("#tab").get_attribute("data-seen") == "yes", "nothing moves under the pointer"


def test_the_keyboard(open_page: Open, address: str) -> None:
    page = open_page(address)
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "find"
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.locator("dialog#keys").is_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url(f"{address}/topics")


def test_light_and_dark(open_page: Open, address: str) -> None:
    page = open_page(address, color_scheme="light")
    light = page.evaluate("getComputedStyle(document.body).color")
    page.get_by_role("button", name="Light or dark").click()
    assert page.evaluate("getComputedStyle(document.body).color") != light
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).color") != light, "it is kept"


def test_an_id_is_copied(open_page: Open, address: str, flights: World) -> None:
    message_id = flights.a_held_message()
    page = open_page(f"{address}/messages/{message_id}", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="copy the id").click()
    page.get_by_role("button", name="copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == message_id


@pytest.mark.parametrize("message_id", ["a%41", "..", "a/../b"])
def test_a_message_with_an_odd_id_has_a_page_and_its_news(
    open_page: Open, address: str, flights: World, message_id: str
) -> None:
    with grpc.insecure_channel(flights.endpoint) as channel:
        AdminServer(flights.broker, channel).send("flights", message_id)
    page = open_page(f"{address}/messages?{urlencode({'find': message_id})}")
    assert page.locator("h1").inner_text() == message_id
    with page.expect_response(lambda response: "/messages/" in response.url) as news:
        pass
    assert news.value.ok
    assert f"popmq why {shlex.quote(message_id)} " in news.value.text()


def test_signing_in_and_a_session_that_ends(open_page: Open) -> None:
    with (
        embedded(auth=True, admin_access_key="root", admin_secret="s3cret-key") as broker,
        console(Settings(ClientConfig(broker.endpoint), sample_s=1.0)) as (address, admin_server),
    ):
        page = open_page(address, may_fail=True)
        page.get_by_label("Access key").fill("root")
        page.get_by_label("Secret").fill("s3cret-key")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="Overview").wait_for()
        admin_server.sessions._signed.clear()
        # The next news of the page find no session.
        page.get_by_role("heading", name="Sign in").wait_for()


def test_no_script_of_a_stranger_runs(open_page: Open, address: str, flights: World) -> None:
    body = json.dumps({EVIL: ["</pre></details>", EVIL]})
    sent = flights.producer.send("flights", body, tag=EVIL[:50], properties={"note": EVIL})
    for path in (
        f"/messages/{sent.message_id}",
        f"/messages/{sent.message_id}?show=text",
        "/topics/flights",
        f"/messages?topic=flights&where={EVIL}",
        f"/groups?name={EVIL}",
    ):
        page = open_page(address + path)
        page.wait_for_load_state("networkidle")
        assert page.title() != "taken" and page.locator("main img, main script").count() == 0, path
