"""Every example runs as its file says, against a real server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock
from urllib.request import urlopen

import pytest

from examples.flights.data import TOPIC, as_message, flights
from examples.flights.processes import server
from popclient import Producer, SimpleConsumer
from popclient.admin import Admin

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """A server on a free port: `popmq serve --min-invisible 1s`."""
    with server(tmp_path / "popmq.db", tmp_path / "server.log") as served:
        yield served.endpoint


def run(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        cwd=EXAMPLES.parent,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_quickstart(endpoint: str) -> None:
    lines = run(str(EXAMPLES / "quickstart.py"), endpoint).splitlines()
    assert lines[0].startswith("sent 01")
    assert lines[1:] == ["attempt 1: one espresso", "attempt 2: one espresso"]


def test_quickstart_finds_the_server_by_the_environment(endpoint: str) -> None:
    assert len(run(str(EXAMPLES / "quickstart.py"), ROCKETMQ_ENDPOINTS=endpoint).splitlines()) == 3


def test_quickstart_fits_on_a_screen() -> None:
    assert len((EXAMPLES / "quickstart.py").read_text().splitlines()) <= 20


def test_lite(endpoint: str) -> None:
    """Twice: the topic is there already, and nothing of the first conversation is left."""
    for _ in range(2):
        lines = run(str(EXAMPLES / "lite.py"), endpoint).splitlines()
        assert lines == ["travel did: a train to Bergen", "weather did: rain in Oslo"]


def test_push(endpoint: str) -> None:
    """The two tables side by side; at each its orders in order, whatever fell."""
    lines = run(str(EXAMPLES / "push.py"), endpoint).splitlines()
    assert [line for line in lines if line.startswith("table 1")] == [
        "table 1: espresso, attempt 1",
        "table 1: a cup of tea falls",
        "table 1: tea, attempt 2",
        "table 1: cake, attempt 1",
    ]
    assert [line for line in lines if line.startswith("table 2")] == [
        "table 2: espresso, attempt 1",
        "table 2: cake, attempt 1",
    ]


def test_queue_granularity(endpoint: str) -> None:
    """It shows the same when it is run once more."""
    for _ in range(2):
        assert run(str(EXAMPLES / "queue_granularity.py"), endpoint).splitlines() == [
            "the till crashes: 50 notes counted, more in hand: True",
            "another has gone on: 100 notes, 5050 euros",
            "the auditor agrees: 5050, and has committed nothing",
        ]


@pytest.mark.row("O8")
def test_official_client(endpoint: str, tmp_path: Path) -> None:
    sent, received = run(str(EXAMPLES / "official_client.py"), endpoint, HOME=str(tmp_path)).splitlines()
    assert received == f"received {sent.removeprefix('sent ')} one espresso"


@pytest.mark.timeout(1_800)
@pytest.mark.usefixtures("java")
@pytest.mark.row("O5", "O6")
@pytest.mark.user("U39", "U40", "U41")
def test_spark_modes(endpoint: str, tmp_path: Path) -> None:
    """Each flight once in each mode, and still when it is all run again."""
    for _ in range(2):
        assert run("-m", "examples.spark_modes", endpoint, str(tmp_path)).splitlines() == [
            "queue: 1,000 flights in Parquet, 1,000 in the table",
            "lease: 1,000 flights in Parquet, 1,000 in the table",
            "journal: 1,000 flights in Parquet, 1,000 in the table",
        ]


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("java")
def test_spark_modes_by_a_journal_alone(endpoint: str, tmp_path: Path) -> None:
    """What a RocketMQ 5 server can do."""
    shown = run("-m", "examples.spark_modes", endpoint, str(tmp_path), "journal").splitlines()
    assert shown == ["journal: 1,000 flights in Parquet, 1,000 in the table"]


def test_spark_modes_with_a_new_checkpoint(tmp_path: Path) -> None:
    """A batch that is repeated adds nothing; one of a query that numbers its batches anew is another."""
    pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")
    from examples.spark_modes import in_table, into_table

    rows = MagicMock()
    rows.select.return_value.collect.return_value = [SimpleNamespace(message_id="1", tag="UA")]
    query = rows.sparkSession.sparkContext.getLocalProperty
    counts = []
    for query.return_value in ("old", "old", "new"):
        into_table(tmp_path / "flights.db", "queue", rows, 0)
        counts.append(in_table(tmp_path / "flights.db", "queue"))
    assert counts == [1, 1, 2]
    query.assert_called_with("sql.streaming.queryId")


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("java")
def test_spark_event_time(endpoint: str, tmp_path: Path) -> None:
    shown = run("-m", "examples.spark_event_time", endpoint, str(tmp_path)).splitlines()
    sent = Counter(row["carrier"] for row in islice(flights(whole_year=False), 1_000))
    largest = sorted(sent.items(), key=lambda each: (-each[1], each[0]))[:3]
    assert shown == [*(f"{carrier}: {count:,}" for carrier, count in largest), f"{len(sent)} carriers: 1,000"]


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("java")
@pytest.mark.row("O7")
@pytest.mark.user("U21")
def test_spark_dead_letters(endpoint: str, tmp_path: Path) -> None:
    """Cancelled flights come again, with an arrival time; the other dead letters are archived and stay."""
    cancelled, lost = die(endpoint)
    round_of_the_night = (
        "-m",
        "examples.spark_dead_letters",
        f"sqlite:///{tmp_path}/popmq.db",
        endpoint,
        str(tmp_path),
    )
    shown = run(*round_of_the_night)
    assert f"nightly-0: {cancelled} sent back, {cancelled} of them repaired, 0 skipped" in shown
    assert f"|cancelled      |{cancelled:<5}|" in shown
    assert f"|lost on the way|{lost:<5}|" in shown
    with SimpleConsumer(endpoint, "arrivals", TOPIC, await_duration=5) as consumer:
        again = [consumer.receive(max_messages=32) for _ in range(1 + cancelled // 32)]
        mended = [message for messages in again for message in messages]
        consumer.ack(mended)
    assert [json.loads(message.body)["arr_time"] for message in mended] == ["cancelled"] * cancelled
    assert "sent back" not in run(*round_of_the_night)


def die(endpoint: str) -> tuple[int, int]:
    """Makes dead letters of the flights that did not arrive: how many never left, how many were lost on the way."""
    rows = [row for row in flights(whole_year=False) if row["arr_time"] is None]
    rows = [row for row in rows if row["dep_time"]] + [row for row in rows if not row["dep_time"]][:50]
    with Admin(endpoint) as admin, Producer(endpoint, TOPIC) as producer:
        admin.create_group("arrivals", max_attempts=1)
        producer.send_many(map(as_message, rows)).raise_for_failures()
        with SimpleConsumer(endpoint, "arrivals", TOPIC, invisible_duration=1, await_duration=1) as consumer:
            while sum(1 for _ in admin.dead_letters("arrivals")) < len(rows):
                consumer.receive(max_messages=32)
    lost = sum(1 for row in rows if row["dep_time"])
    return len(rows) - lost, lost


def test_the_demo_without_java(tmp_path: Path) -> None:
    """The Spark part says in one line how to get it; the rest runs and is proved from the database."""
    shown = run("-m", "examples.flights", "--out", str(tmp_path), JAVA_HOME="/nowhere", COLUMNS="120")
    assert "left out: Spark needs Java 17 or newer, and JAVA_HOME=/nowhere is no Java that starts; get one" in shown
    assert_proved(shown)
    assert_drawn(shown, tmp_path)
    assert shown.endswith("the console on these flights: make demo ARGS=--serve\n")


def test_the_demo_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    """Its console has the flights; Ctrl-C, which goes to all its processes, ends it without an error."""
    words = [sys.executable, "-m", "examples.flights", "--serve", "--out", str(tmp_path)]
    environment = {**os.environ, "JAVA_HOME": "/nowhere", "COLUMNS": "120"}
    with subprocess.Popen(
        words,
        cwd=EXAMPLES.parent,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as demo:
        assert demo.stdout is not None
        try:
            shown = ""
            while "it runs until Ctrl-C" not in shown:
                line = demo.stdout.readline()
                assert line, shown
                shown += line
            (flight,) = re.findall(r"the flight of the picture: (\S+)", shown)
            page = urlopen(flight, timeout=60).read().decode()
            os.killpg(demo.pid, signal.SIGINT)
            rest = demo.stdout.read()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(demo.pid, signal.SIGKILL)
    assert "Its life in every group" in page
    assert_drawn(shown, tmp_path)
    assert rest.split() == ["ended"]
    assert demo.returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("java")
def test_the_demo(tmp_path: Path) -> None:
    shown = run("-m", "examples.flights", "--out", str(tmp_path), COLUMNS="120")
    assert "UA  United Air Lines Inc.     115   14   18        147" in shown
    assert "872 dead letters written as Parquet" in shown
    assert "dead letters: 869 cancelled, 3 lost on the way" in shown
    assert "sent back with an arrival time: 869; taken by 'arrivals' this time: 869" in shown
    assert_proved(shown)
    assert_drawn(shown, tmp_path)


def assert_proved(shown: str) -> None:
    assert "kill -9 of consumer process" in shown
    assert "its holds have ended, and the others get its flights" in shown
    assert "arrivals: sent 2,546 = committed 1,674 + dead letters 872; duplicates while held 0; lost 0" in shown
    assert "radar: sent 2,546 = committed 2,546 + dead letters 0; duplicates while held 0; lost 0" in shown
    assert "\n   proved\n" in shown


def assert_drawn(shown: str, out: Path) -> None:
    assert f"the states of all flights over time: {out / 'states.svg'}" in shown
    assert "kill -9 of a consumer" in (out / "states.svg").read_text()
    assert "The life of flight " in (out / "flight.svg").read_text()
