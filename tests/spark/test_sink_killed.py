"""The sink through the death of its driver: what is run again adds nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from examples.flights.processes import server
from tests.spark.sent import bodies
from tests.spark.sink_driver import ROWS_PER_FILE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = 2
EVERY_ONE_ONCE = Counter(f"row {i}" for i in range(FILES * ROWS_PER_FILE))


def drive(endpoint: str, folder: Path, point: str) -> int:
    """Runs the driver to its end, or to its death; its exit status."""
    command = [sys.executable, "-m", "tests.spark.sink_driver", endpoint, "sent", str(folder), point]
    with (folder / "driver.log").open("ab") as log:
        driver = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        return driver.wait(400)
    except subprocess.TimeoutExpired:
        os.killpg(driver.pid, signal.SIGKILL)
        raise


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> Path:
    """Files of rows, a batch each."""
    for file in range(FILES):
        rows = spark.range(file * ROWS_PER_FILE, (file + 1) * ROWS_PER_FILE, 1, 1)
        rows.selectExpr("concat('row ', id) AS body").write.mode("append").parquet(str(tmp_path / "rows"))
    return tmp_path


@pytest.mark.row("O6")
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("points", [["write"], pytest.param(["write", "commit"], marks=pytest.mark.slow)])
def test_a_killed_driver(folder: Path, points: list[str]) -> None:
    """Killed in the middle of a write, or there and in a commit, and run again: every row once."""
    with server(folder / "popmq.db", folder / "server.log") as (endpoint, *_):
        for point in points:
            assert drive(endpoint, folder, point) == -signal.SIGKILL, (folder / "driver.log").read_text()[-2_000:]
        assert 0 < sum(bodies(endpoint, "sent").values()) < len(EVERY_ONE_ONCE)
        assert drive(endpoint, folder, "nowhere") == 0, (folder / "driver.log").read_text()[-2_000:]
        assert bodies(endpoint, "sent") == EVERY_ONE_ONCE
