"""`kill -9` of a driver with all that belongs to it, at named points: nothing is lost or takes effect twice."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

import popserver
from popclient import Message, Producer
from popclient.admin import Admin
from tests.spark.stream_job import patient

MESSAGES = 250
# Longer than the server waits for a push consumer that has gone, far shorter than a lease.
UNTIL_MISSED = "45s"
JOURNAL_POINTS = ("before-journal", "before-ack", "before-wal", "planned", "read", "sunk", "removed")
LEASE_POINTS = ("received", "before-wal", "planned", "read", "sunk", "before-ack", "acked")


@pytest.fixture
def broker() -> Iterator[popserver.EmbeddedBroker]:
    with popserver.embedded(manual_clock=True) as broker:
        yield broker


@pytest.mark.timeout(900)
@pytest.mark.row("O5")
@pytest.mark.user("U40")
@pytest.mark.parametrize("mode", ["journal", "lease"])
def test_a_driver_that_is_killed_after_its_sink_has_committed(
    mode: str, broker: popserver.EmbeddedBroker, tmp_path: Path
) -> None:
    survive(broker, mode, tmp_path, ["sunk"])


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.row("O5")
@pytest.mark.user("U40")
@pytest.mark.parametrize(("mode", "points"), [("journal", JOURNAL_POINTS), ("lease", LEASE_POINTS)])
def test_a_driver_that_is_killed_everywhere(
    mode: str, points: tuple[str, ...], broker: popserver.EmbeddedBroker, tmp_path: Path
) -> None:
    survive(broker, mode, tmp_path, list(points))


def survive(broker: popserver.EmbeddedBroker, mode: str, folder: Path, points: list[str]) -> None:
    with Producer(patient(broker.endpoint)) as producer:
        producer.send_many([Message("t", str(number)) for number in range(MESSAGES)]).raise_for_failures()
    for _ in points:
        assert driven(mode, broker.endpoint, folder, points) == -signal.SIGKILL
        broker.clock.advance(UNTIL_MISSED)
    assert driven(mode, broker.endpoint, folder, points) == 0
    assert sorted(path.name for path in folder.glob("died at *")) == sorted(f"died at {point}" for point in points)
    assert stored(folder) == Counter(str(number) for number in range(MESSAGES))
    with Admin(patient(broker.endpoint), connect_timeout=30.0) as admin:
        assert sum(lag.ready + lag.inflight + lag.waiting_retry for lag in admin.list_lag("g", "t")) == 0


def driven(mode: str, endpoint: str, folder: Path, points: list[str]) -> int:
    """How one run ended."""
    command = [sys.executable, "-m", "tests.spark.stream_driver", mode, endpoint, "t", str(folder), *points]
    # The driver's own words tell what went wrong; Spark's are many.
    ran = subprocess.run(
        command, process_group=0, capture_output=True, text=True, check=False, timeout=300, env=dict(os.environ)
    )
    print(ran.stderr[-4_000:])
    return ran.returncode


def stored(folder: Path) -> Counter[str]:
    table = sqlite3.connect(folder / "rows.db")
    rows = Counter(body for (body,) in table.execute("SELECT body FROM row"))
    table.close()
    return rows
