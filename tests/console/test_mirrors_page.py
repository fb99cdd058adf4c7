"""Mirrors in the console: a page with their progress, and a way to it where there are any."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from popclient.admin import Admin, MirrorFacts, MirrorReport
from popconsole.mirror_looks import Told, with_report
from tests.console.site import Site
from tests.support.admin_server import AdminServer

REPORT = MirrorReport("nightly", "old:8081", "new:8081", "flights", "billing", "one", "ship", handed=30, lag=10)
AT = datetime(2026, 11, 20, 14, tzinfo=UTC)
LINK = '<a href="/mirrors" data-key="i"'


@pytest.fixture
def admin(either_admin_server: AdminServer) -> Iterator[Admin]:
    with Admin(either_admin_server.server.endpoint) as client:
        yield client


def test_a_mirror_is_shown_with_its_progress_and_rate(
    stored_site: Site, either_admin_server: AdminServer, admin: Admin
) -> None:
    assert "No mirror has reported to this server." in stored_site.get("/mirrors")
    assert LINK not in stored_site.get("/")
    admin.report_mirror(REPORT)
    assert LINK in stored_site.get("/")
    page = stored_site.get("/mirrors")
    assert "1 mirror: processes" in page and "old:8081 to new:8081" in page and "for billing" in page
    assert '<progress max="40" value="30" aria-label="30 of 40 handed over">' in page and ">running<" in page
    assert '<td class="num">–</td>' in page, "the rate is not known yet"
    either_admin_server.server.clock.advance("10s")
    admin.report_mirror(replace(REPORT, state="HELD", sentence="<b>the disk</b> is full", handed=80, lag=None))
    raw = stored_site.browser.get("/mirrors").text
    assert "&lt;b&gt;the disk&lt;/b&gt; is full" in raw
    assert '<td class="num">5.0</td>' in raw and "not known" in raw and ">held<" in raw


def test_a_mirror_that_is_gone_is_marked_and_leads_here(
    stored_site: Site, either_admin_server: AdminServer, admin: Admin
) -> None:
    admin.report_mirror(replace(REPORT, group=None), lease=5)
    either_admin_server.server.clock.advance("6s")
    page = stored_site.get("/")
    assert "Mirror nightly of flights is gone" in page and 'href="/mirrors"' in page
    assert ">gone</span>" in stored_site.get("/mirrors") and "the whole topic" in stored_site.get("/mirrors")


def mirror(after_s: int, handed: int) -> MirrorFacts:
    at = AT + timedelta(seconds=after_s)
    return MirrorFacts(
        "m",
        "a",
        "b",
        "",
        "t",
        None,
        "o",
        "h",
        "RUNNING",
        "",
        "",
        handed,
        0,
        0,
        0,
        0,
        None,
        at,
        AT,
        at,
        True,
        timedelta(),
    )


def test_a_rate_is_that_of_the_last_minute() -> None:
    told: list[Told] = []
    for after_s, handed in ((0, 0), (10, 100), (10, 100), (65, 300)):
        told = with_report(told, mirror(after_s, handed))
    assert [each.handed for each in told] == [100, 300]
    assert [each.handed for each in with_report(told, mirror(500, 400))] == [300, 400], "the newest one before"
    assert [each.handed for each in with_report(told, mirror(70, 4))] == [4], "it began anew"
    assert [each.handed for each in with_report(told, mirror(60, 500))] == [500], "another server answered"
