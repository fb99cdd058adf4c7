"""What the live plots draw."""

from __future__ import annotations

import pytest

from popclient.admin import Histogram
from popconsole.pulse import Backlog, Sample
from popconsole.rates import commit_quantiles, series
from popproto.v2 import definition_pb2 as pb
from tests.console.site import Site
from tests.support.admin_server import AdminServer, named


def at(moment: float, *counts: int, stored: int = 0, left: int = 0) -> Sample:
    commits = Histogram((0.001, 0.01, 0.1), counts, 0.0) if counts else None
    return Sample(moment, stored, {"arrivals": Backlog(left=left, ready=stored - left)}, commits)


def test_commits_between_two_looks() -> None:
    before, after = at(0, 50, 0, 0, 0), at(5, 50, 90, 10, 0)
    assert commit_quantiles(before, after) == (6.0, 91.0)
    assert commit_quantiles(before, at(5, 50, 0, 0, 7)) == (100.0, 100.0), "above all limits is the last of them"


@pytest.mark.parametrize(
    "later", [at(5, 50, 0, 0, 0), at(5), at(5, 3, 0, 0, 0)], ids=["no commit", "an older server", "it was restarted"]
)
def test_nothing_is_known_of_commits(later: Sample) -> None:
    assert commit_quantiles(at(0, 50, 0, 0, 0), later) == (None, None)


def test_lines_have_a_value_for_each_moment() -> None:
    lines = series([at(0, stored=10, left=4), at(5, stored=20, left=4), at(10, stored=20, left=19)])
    assert lines["at"] == [5, 10]
    assert lines["in"] == [2.0, 1.0]
    assert lines["out"] == [{"name": "arrivals", "values": [0.0, 1.5]}]
    assert lines["ready"] == [16, 1]


def test_a_server_tells_how_long_its_commits_take(stored_site: Site, either_admin_server: AdminServer) -> None:
    either_admin_server.call("CreateTopic", topic=named("flights"), accept_message_types=[pb.NORMAL])
    assert "This server does not tell it." not in stored_site.get("/")
    either_admin_server.send("flights", "m1")
    stored_site.broker.clock.advance("5s")
    stored_site.get("/server")  # looks at once
    lines = stored_site.browser.get("/activity").json()
    assert lines["in"] == [0.2]
    assert 0 < lines["p50"][0] <= lines["p99"][0]
