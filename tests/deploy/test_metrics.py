"""The dashboard and the alerts use names and labels that a server exports, in queries that Prometheus understands."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser as promql
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import popclient
from popserver.in_process import embedded
from popserver.metrics import exporter, flow
from popserver.metrics.names import BY_NAME, COMMON, Kind
from tests.deploy.deployed import DEPLOY
from tests.support.http_client import get

DASHBOARD = json.loads((DEPLOY / "grafana" / "popmq.json").read_text())
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
]
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
# What Prometheus adds to each series, and what it records of each scrape.
OF_PROMETHEUS = {"job", "instance"}
SCRAPE = {"up": frozenset[str]()}
# Values of labels that the server of this test has no reason to export.
UNSEEN = {("is_retry", "true"), ("response_code", "INTERNAL_SERVER_ERROR"), ("result", "failed")}


class Selector(NamedTuple):
    """The series that a query reads: those of a name, whose labels have these values."""

    name: str
    equal: dict[str, str]
    labels: set[str]


def shown() -> Iterator[tuple[str, str]]:
    """Each query, with where it is."""
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for name, variable in VARIABLES.items():
        if variable["type"] == "query":
            yield name, re.fullmatch(r"label_values\((.*), \w+\)", variable["definition"])[1]  # type: ignore[index]


def parsed(query: str) -> Any:
    """The query, with a value for each of Grafana's variables. Fails if it is not PromQL."""
    for name in [*VARIABLES, "__rate_interval"]:
        query = query.replace(f"${name}", "5m" if name == "__rate_interval" else "x")
    assert "$" not in query
    return promql.parse(query)


def parts(query: str) -> tuple[list[Selector], set[str]]:
    """What a query reads, and the labels that it groups or matches by."""
    selectors, grouping = [], set[str]()

    def visit(node: Any) -> bool:
        if isinstance(node, promql.VectorSelector | promql.MatrixSelector):
            vector = node if isinstance(node, promql.VectorSelector) else node.vector_selector
            matchers = vector.matchers.matchers
            equal = {each.name: each.value for each in matchers if each.op == promql.MatchOp.Equal}
            selectors.append(Selector(str(vector.name), equal, {each.name for each in matchers}))
        modifier = getattr(node, "modifier", None)
        if isinstance(node, promql.AggregateExpr) and modifier is not None:
            grouping.update(modifier.labels)
        elif modifier is not None and modifier.matching is not None:
            grouping.update(modifier.matching.labels)
        return True

    promql.walk(parsed(query), visit)
    assert selectors, query
    return selectors, grouping


def labels_of(name: str, others: set[str]) -> set[str]:
    """The labels of a series of this name. Fails if no server exports it."""
    if name in SCRAPE:
        return OF_PROMETHEUS
    metric = BY_NAME.get(name)
    if metric is None:
        base = re.sub("_(bucket|sum|count)$", "", name)
        if base in BY_NAME:
            assert BY_NAME[base].kind is Kind.HISTOGRAM, name
            return {*BY_NAME[base].labels, *COMMON, *OF_PROMETHEUS, *(["le"] if name.endswith("_bucket") else [])}
        assert name in others, f"no server exports {name}"
        return OF_PROMETHEUS
    assert metric.kind is not Kind.HISTOGRAM, f"{name} has no series of its own name"
    return {*metric.labels, *COMMON, *OF_PROMETHEUS}


@pytest.fixture(scope="module")
def exported() -> dict[str, list[dict[str, str]]]:
    """The labels of each series of a server at work, by name."""
    with (
        pytest.MonkeyPatch.context() as patch,
        embedded(http="127.0.0.1:0") as broker,
        popclient.Producer(broker.endpoint) as producer,
        popclient.SimpleConsumer(broker.endpoint, group="billing", topics="orders") as consumer,
    ):
        patch.setattr(exporter, "REMEMBERED_S", -1.0)
        patch.setattr(flow, "pause_s", lambda _took_s: 0.0)
        patch.setattr(flow, "WAIT_S", 30.0)
        producer.send_many([popclient.Message("orders", b"one") for _ in range(3)])
        consumer.ack(consumer.receive(1)[0])
        text = asyncio.run(get(broker.app.http_endpoint, "/metrics")).text
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(dict(sample.labels))
    return found


@pytest.mark.parametrize(("where", "query"), list(shown()))
def test_a_query_reads_what_is_exported(where: str, query: str, exported: dict[str, list[dict[str, str]]]) -> None:
    selectors, grouping = parts(query)
    known = set[str]()
    for name, equal, labels in selectors:
        its = labels_of(name, set(exported))
        assert labels <= its, (where, name)
        known |= its
        if name in SCRAPE:
            continue
        for label, value in equal.items():
            if label not in OF_PROMETHEUS and (label, value) not in UNSEEN:
                assert any(series.get(label) == value for series in exported[name]), (where, name, label, value)
    assert grouping <= known, where


def test_a_wrong_name_and_a_wrong_label_are_found() -> None:
    with pytest.raises(AssertionError, match="popmq_raedy"):
        labels_of("popmq_raedy", set())
    with pytest.raises(AssertionError, match="no series"):
        labels_of("popmq_commit_seconds", set())
    assert parts('sum by (topik) (a{b="c"}) / on (d) e') == (
        [("a", {"b": "c"}, {"b"}), ("e", {}, set())],
        {"topik", "d"},
    )
    with pytest.raises(ValueError, match="parenthesis"):
        parsed("sum by (a b")


def test_the_numbers_of_the_database_are_taken_once() -> None:
    """Each server of one Postgres exports them, so a sum over servers would count them several times."""
    for where, query in shown():
        for name, _, _ in parts(query)[0]:
            if name in BY_NAME and BY_NAME[name].scope == "store" and not query.startswith(name):
                assert re.search(rf"max(?: by \([^)]*\) )?\({name}\b", query), (where, name)


def test_each_panel_has_a_place_of_its_own_and_says_what_it_shows() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken = set[tuple[int, int]]()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
    for panel in PANELS:
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]


def test_each_legend_and_annotation_names_labels_that_remain() -> None:
    """A label that the query has summed away would be shown as nothing."""
    for panel in PANELS:
        for target in panel["targets"]:
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= parts(target["expr"])[1], panel["title"]
    for rule in RULES:
        selectors, grouping = parts(rule["expr"])
        if not grouping:
            grouping = set.union(*(labels_of(name, set()) for name, _, _ in selectors))
        words = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", words)) <= grouping, rule["alert"]
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}


def test_each_command_that_an_alert_names_exists() -> None:
    commands = (DEPLOY.parent / "docs" / "commands.md").read_text()
    named = re.findall(r"popmq (\w+(?: \w+)?)(?=[.,]| names)", ALERTS.read_text())
    assert len(named) > 5
    for each in named:
        assert f"## popmq {each.removesuffix(' names')}\n" in commands, each


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed; on Debian: apt-get install prometheus")
    return found


def test_promtool_accepts_the_alerts(promtool: str, tmp_path: Path) -> None:
    done = subprocess.run([promtool, "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(RULES)} rules found" in done.stdout


def test_alerts_fire_when_they_should(promtool: str) -> None:
    checks = Path(__file__).with_name("alerts_test.yml")
    done = subprocess.run([promtool, "test", "rules", str(checks)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
