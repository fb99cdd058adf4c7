"""A number that stands in several places is the same in all of them: pages, `popmq status` and metrics."""

from __future__ import annotations

import json
import re

import httpx2
import pytest

import popclient
import popclient.cli
import popserver
from popclient.config import ClientConfig
from popconsole import words
from popconsole.pulse import Backlog, Sample
from popconsole.rates import incoming, outgoing, series, trends
from popconsole.settings import Settings
from popproto.v2 import definition_pb2 as pb
from tests.console.site import Site, browsing
from tests.support.admin_server import AdminServer, named


def plain(page: str) -> str:
    return re.sub(r"<[^>]*>", "", page)


def figures(page: str) -> dict[str, int]:
    """The numbers of a page by their names."""
    found = re.findall(r"<dt>([^<]*)</dt><dd>(?:<a [^>]*>)?([\d\u202f]+)<", page)
    return {name: int(value.replace(words.THIN, "")) for name, value in found}


@pytest.fixture
def crowded(either_admin_server: AdminServer) -> AdminServer:
    """Two topics with messages, two groups of which one has a dead letter, and one group without a topic."""
    for topic in ("flights", "gates"):
        either_admin_server.call("CreateTopic", topic=named(topic), queue_count=2, accept_message_types=[pb.NORMAL])
    for group in ("arrivals", "radar", "idle"):
        either_admin_server.make_group(group, history="all")
    either_admin_server.send("flights", "f1", "f2", "f3")
    either_admin_server.send("gates", "g1", "g2")
    (first, *_) = either_admin_server.receive("arrivals", "flights", 2)
    either_admin_server.give_up("arrivals", "flights", first)
    either_admin_server.receive("radar", "gates", 1)
    return either_admin_server


def test_pages_and_command_agree(stored_site: Site, crowded: AdminServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert popclient.cli.main(["--endpoint", stored_site.broker.endpoint, "status", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    overview, server = stored_site.get("/"), stored_site.get("/server")
    for page in (overview, server):
        shown = figures(page)
        assert (shown["Topics"], shown["Messages stored"], shown["Dead letters"]) == (2, 5, 1)
        assert shown["Clients"] == status["connected_clients"]
    assert figures(server)["Ever stored"] == figures(server)["Messages stored"], "nothing was removed"
    assert figures(server)["Groups"] == 3
    counts = (status["topics"], status["groups"], status["messages"], status["dead_letters"])
    assert counts == (2, 3, 5, 1)
    assert "3 groups, none is behind" in overview
    assert "all 3, 1 without a topic yet" in overview
    assert "3 groups, 1 without a topic yet" in stored_site.get("/groups")
    assert "2 topics with 5 messages." in stored_site.get("/topics")
    assert "5 messages are stored" in stored_site.get("/messages")
    assert "1 dead letter of 1 group" in plain(stored_site.get("/dead-letters"))
    assert "1 dead letters" in plain(stored_site.get("/dead-letters/arrivals"))
    group = plain(stored_site.get("/groups/arrivals"))
    (row,) = [each for each in stored_site.get("/groups").split("<tr>") if "/groups/arrivals" in each]
    assert re.search(r"DLQ 1\b", group) and ">1</a>" in row
    for name in ("Topics", "Messages stored", "Ever stored", "Dead letters"):
        assert words.MEANINGS[name] in server


def test_metrics_agree() -> None:
    with popserver.embedded(http="127.0.0.1:0") as broker, browsing(Settings(ClientConfig(broker.endpoint))) as browser:
        with popclient.Producer(broker.endpoint) as producer:
            for number in range(7):
                producer.send("orders", f"order {number}")
        shown = figures(Site(broker, browser).get("/server"))
        text = httpx2.get(f"http://{broker.app.http_endpoint}/metrics").text
        stored = re.findall(r'^popmq_stored_messages\{[^}]*topic="([^"]*)"[^}]*\} (\S+)$', text, re.MULTILINE)
        assert shown["Messages stored"] == sum(float(value) for topic, value in stored if topic[0] != "%") == 7


def sample(at: float, stored: int, left: int, **groups: int) -> Sample:
    backlogs = {name: Backlog(left=each) for name, each in groups.items()}
    return Sample(at, stored, {"arrivals": Backlog(left=left, ready=stored - left), **backlogs})


@pytest.mark.parametrize("step_s", [5, 70], ids=["often", "of a slow server"])
def test_a_rate_is_one_number_in_table_plot_and_sentence(step_s: int) -> None:
    samples = [sample(step_s * number, 50 * number**2, 40 * number**2) for number in range(20)]
    lines = series(samples)
    assert lines["in"][-1] == pytest.approx(incoming(samples), abs=0.01)
    assert lines["out"][0]["values"][-1] == pytest.approx(trends(samples)["arrivals"].out, abs=0.01)
    assert outgoing(samples) == trends(samples)["arrivals"].out


def test_what_is_not_known_is_no_zero() -> None:
    assert outgoing([sample(0, 1, 1)]) is None
    assert incoming([sample(0, 1, 1)]) is None
    assert trends([sample(0, 1, 1), sample(5, 2, 2, new=3)])["new"].out is None
