"""The charts of groups and topics, which the server keeps, and what the overview says of alerts."""

from __future__ import annotations

import html
from collections.abc import Iterator

import pytest

from popproto.v2 import definition_pb2 as pb
from popserver.alerts import flow as alerts_flow
from popserver.alerts import watch
from popserver.charts import flow as charts_flow
from tests.alerts.receiver import a_webhook
from tests.console.conftest import _desk
from tests.console.site import Site, opened
from tests.support.admin_server import AdminServer, named
from tests.support.waiting import soon


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look of a busy machine takes long, and the tests' clock stands still meanwhile."""
    monkeypatch.setattr(charts_flow, "PAUSE_FACTOR", 0)
    monkeypatch.setattr(watch, "PAUSE_FACTOR", 0)
    monkeypatch.setattr(alerts_flow, "REMEMBERED_FACTOR", 0)


@pytest.fixture
def charted(database_url: str) -> Iterator[Site]:
    """A site of a server that keeps charts."""
    with opened(database_url, max_chart_series=10) as opened_site:
        yield opened_site


@pytest.fixture
def made(charted: Site) -> Iterator[AdminServer]:
    for server in _desk(charted):
        server.call("CreateTopic", topic=named("flights"), queue_count=1, accept_message_types=[pb.NORMAL])
        server.make_group("arrivals", history="all")
        yield server


@pytest.mark.parametrize("page", ["/groups/arrivals?tab=activity&", "/topics/flights?"])
def test_charts_of_four_ranges(charted: Site, made: AdminServer, page: str) -> None:
    charted.broker.clock.advance("10s")
    made.send("flights", *(f"m{number}" for number in range(6)))
    made.receive("arrivals", "flights", 1)  # for 10 s
    charted.broker.clock.advance("6s")
    source = page.partition("?")[0] + "/activity"
    for minutes, step in ((15, "15 s"), (60, "1 min"), (1_440, "10 min"), (10_080, "1 h")):
        lines = charted.browser.get(f"{source}?minutes={minutes}").json()
        assert 3 <= lines.pop("every") <= 60, "seconds until the page asks again"
        assert (lines["ready"][-1], lines["inflight"][-1], lines["waiting"][-1]) == (5, 1, 0)
        assert len({len(each) for each in lines.values()}) == 1
        shown = charted.get(f"{page}minutes={minutes}")
        assert f'data-source="{source}?minutes={minutes}"' in shown and "times in UTC" in shown
        assert f"a point each {step}" in shown
        assert shown.count("data-plot=") == 4
        for name in ("15 min", "1 h", "24 h", "7 d"):
            assert f">{name}</a>" in shown
    assert "must be one of 15, 60, 1440 and 10080" in charted.get(f"{page}minutes=7", 400)


def test_there_is_no_chart_of_nobody(charted: Site, made: AdminServer) -> None:
    assert charted.browser.get("/groups/none/activity").status_code == 404
    assert charted.browser.get("/topics/none/activity").status_code == 404
    assert charted.get("/topics/none", 404)


def test_a_server_that_keeps_no_charts_says_so(site: Site, admin_server: AdminServer) -> None:
    admin_server.call("CreateTopic", topic=named("flights"), accept_message_types=[pb.NORMAL])
    page = site.get("/topics/flights")
    assert "<code>--max-chart-series</code> is 0" in page and "data-plot" not in page


def test_a_topic_of_a_group_has_none(charted: Site, made: AdminServer) -> None:
    made.send("flights", "m1")
    (held,) = made.receive("arrivals", "flights", 1)
    made.give_up("arrivals", "flights", held)
    assert "data-plot" not in charted.get("/topics/%25DLQ%25arrivals")


def test_the_overview_has_what_the_server_finds(site: Site, admin_server: AdminServer) -> None:
    admin_server.call("CreateTopic", topic=named("flights"), accept_message_types=[pb.NORMAL])
    admin_server.make_group("arrivals")
    assert "No group falls behind" in site.get("/")
    admin_server.send("flights", "m1")
    (held,) = admin_server.receive("arrivals", "flights", 1)
    admin_server.give_up("arrivals", "flights", held)

    def says() -> bool:
        page = site.get("/")
        return "1 dead letter of arrivals in the last hour." in page and 'href="/dead-letters/arrivals"' in page

    soon(says)


def test_the_overview_says_that_the_webhook_fails() -> None:
    with a_webhook() as server:
        server.answers = [500]
        with opened(alert_webhook=server.url) as site:
            for desk in _desk(site):
                desk.call("CreateTopic", topic=named("flights"), accept_message_types=[pb.NORMAL])
                desk.make_group("arrivals")
                desk.send("flights", "m1")
                (held,) = desk.receive("arrivals", "flights", 1)
                desk.give_up("arrivals", "flights", held)

            def says() -> bool:
                site.broker.clock.advance("15s")
                return "The webhook does not accept alerts" in html.unescape(site.get("/"))

            soon(says)
            page = site.get("/")
            assert "answered 500" in page and "Not told yet: 1 event." in page
            assert "t0ken" not in page
