"""Every page, with all that the flights put on it: everybody can use it, also with a phone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.world import PAGES, World

pytestmark = pytest.mark.browser

Open = Callable[..., Any]
AXE = Path(__file__).parents[2] / ".venv" / "axe-core" / "package" / "axe.min.js"


@pytest.fixture(scope="module")
def axe() -> str:
    """The script that judges a page."""
    if not AXE.exists():
        pytest.skip("axe-core is fetched by make test-browser")
    return AXE.read_text()


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_finding_of_axe(open_page: Open, axe: str, address: str, name: str, scheme: str) -> None:
    page = open_page(address + PAGES[name], may_fail=True, color_scheme=scheme)
    found = findings(page, axe)
    assert found == [], found


def findings(page: Any, axe: str) -> list[str]:
    """Findings of axe that are serious or worse."""
    page.evaluate(axe)  # not as a script of the page, which its policy forbids
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]} {each['nodes'][0]['failureSummary'][:300]}"
        for each in result["violations"]
        if each["impact"] in ("serious", "critical")
    ]


def test_the_page_of_a_message_has_no_finding_either(open_page: Open, axe: str, address: str, flights: World) -> None:
    assert findings(open_page(f"{address}/messages/{flights.a_dead_letter()}"), axe) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_without_an_answer_has_no_finding_either(open_page: Open, axe: str, address: str, scheme: str) -> None:
    page = open_page(address, may_fail=True, color_scheme=scheme)
    page.route("**/alive", lambda route: route.abort())
    page.wait_for_selector('body[data-state="dead"]')
    assert findings(page, axe) == []
