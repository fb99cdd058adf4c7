"""`kill -9` of a driver with all that belongs to it, at named points: nothing is lost or takes effect twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

import popserver
from tests.spark.stream_job import UNTIL_MISSED, assert_each_once, send_numbers

MESSAGES = 250
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
    send_numbers(broker.endpoint, MESSAGES)
    for _ in points:
        assert driven(mode, broker.endpoint, folder, points) == -signal.SIGKILL
        broker.clock.advance(UNTIL_MISSED)
    assert driven(mode, broker.endpoint, folder, points) == 0
    assert sorted(path.name for path in folder.glob("died at *")) == sorted(f"died at {point}" for point in points)
    assert_each_once(broker.endpoint, folder, MESSAGES)


def driven(mode: str, endpoint: str, folder: Path, points: list[str]) -> int:
    """How one run ended."""
    command = [sys.executable, "-m", "tests.spark.stream_driver", mode, endpoint, "t", str(folder), *points]
    # The driver's own words tell what went wrong; Spark's are many.
    ran = subprocess.run(
        command, process_group=0, capture_output=True, text=True, check=False, timeout=300, env=dict(os.environ)
    )
    print(ran.stderr[-4_000:])
    return ran.returncode
