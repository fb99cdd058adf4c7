"""The console as people use it, in Chromium."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from popclient.config import ClientConfig
from popconsole.settings import Settings
from popserver import embedded
from tests.browser.conftest import AXE, console
from tests.browser.world import World

pytestmark = pytest.mark.browser

Open = Callable[..., Any]
PAGES = {
    "overview": "/",
    "groups": "/groups",
    "holds": "/groups/radar",
    "queues": "/groups/radar?tab=queues",
    "members": "/groups/arrivals?tab=members",
    "message groups": "/groups/gates?tab=message-groups",
    "policy": "/groups/arrivals?tab=policy",
    "reset": "/groups/radar/reset?topic=flights&to=BEGINNING",
    "messages": "/messages?topic=flights&tag=UA",
    "dead letters": "/dead-letters",
    "dead letters of a group": "/dead-letters/arrivals",
    "dead letter": "/dead-letters/arrivals/1",
    "purge": "/dead-letters/arrivals/purge",
    "topics": "/topics",
    "topic": "/topics/flights",
    "scheduled": "/scheduled",
    "clients": "/clients",
    "users": "/users",
    "server": "/server",
}
EVIL = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_finding_of_axe(open_page: Open, address: str, name: str, scheme: str) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is fetched by make test-browser")
    page = open_page(address + PAGES[name], color_scheme=scheme)
    found = check(page)
    assert found == [], found


def check(page: Any) -> list[str]:
    """Findings of axe that are serious or worse."""
    page.evaluate(AXE.read_text())  # not as a script of the page, which its policy forbids
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]} {each['nodes'][0]['failureSummary'][:300]}"
        for each in result["violations"]
        if each["impact"] in ("serious", "critical")
    ]


def test_the_page_of_a_message_has_no_finding_either(open_page: Open, address: str, flights: World) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is fetched by make test-browser")
    assert check(open_page(f"{address}/messages/{flights.a_dead_letter()}")) == []


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_a_phone(open_page: Open, address: str, name: str) -> None:
    page = open_page(address + PAGES[name], viewport={"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_plots_draw_what_happens(open_page: Open, address: str, flights: World) -> None:
    page = open_page(address)
    flights.send_flights(20)
    for name in ("in", "out", "backlog"):
        page.wait_for_selector(f'[data-plot="{name}"] canvas', timeout=20_000)


def test_dead_letters_go_back_from_the_page(open_page: Open, address: str, flights: World) -> None:
    page = open_page(f"{address}/dead-letters/arrivals")
    page.locator('input[name="id"]').first.check()
    page.get_by_label("Why").fill("the feed is fixed")
    page.get_by_role("button", name="Plan it").click()
    assert "Nothing has moved yet" in page.inner_text("main")
    send = page.get_by_role("button", name="Send 1 message back")
    assert send.is_disabled(), "the name is not typed yet"
    page.locator('input[name="confirm"]').fill("arrivals")
    send.click()
    page.get_by_text("done", exact=True).first.wait_for(timeout=15_000)
    # It fails again, because the flight has not arrived meanwhile.
    page.get_by_text("died again").first.wait_for(timeout=20_000)


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


def test_signing_in_and_a_session_that_ends(open_page: Open) -> None:
    with (
        embedded(auth=True, admin_access_key="root", admin_secret="s3cret-key") as broker,
        console(Settings(ClientConfig(broker.endpoint), sample_s=1.0)) as (address, desk),
    ):
        page = open_page(address)
        page.get_by_label("Access key").fill("root")
        page.get_by_label("Secret").fill("s3cret-key")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="Overview").wait_for()
        desk.sessions._by_token.clear()
        # The next news of the page find no session.
        page.get_by_role("heading", name="Sign in").wait_for(timeout=15_000)


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
