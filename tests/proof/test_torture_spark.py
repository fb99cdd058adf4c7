"""A Spark query under torture: its sink has each message once, its process is watched, planted faults are found."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from proof.history.events import SinkRow, SparkBatch, SparkEnded, SunkBatch
from proof.history.scenes import Scene
from proof.torture.place import LAYOUTS
from proof.torture.planted import FAULTS
from proof.torture.round import Plan, run_round
from proof.torture.spark_process import Moment, SparkProcess, spark_is_there
from proof.torture.spark_program import SINK, Row, store, stored_in
from tests.support.checker import Call, History, Outcome

A, B = (0, 7, "a", "content of a"), (1, 0, "b", "content of b")
OF_SPARK = [name for name, fault in FAULTS.items() if fault.scene is Scene.SPARK]
ROUNDS = 3  # a fault of the sink shows itself only if the driver is killed at its moment

# Instead of Spark: it gives one batch to the sink, and begins another one when the folder has the file `go`.
PROGRAM = """
import sys, time
from pathlib import Path
from proof.torture import spark_program
*_, then, folder = sys.argv
if then == "end":
    sys.exit("no server")
first, second = {rows}
spark_program.say(query="q", number=0, rows=[first])
spark_program.store(Path(folder) / spark_program.SINK, "q", 0, [first])
spark_program.say(query="q", number=0)
while not (Path(folder) / "go").exists():
    time.sleep(0.01)
spark_program.say(query="q", number=1, rows=[second])
time.sleep(3_600)
"""


@pytest.fixture
def _needs_spark() -> None:
    if not spark_is_there():
        assert os.environ.get("CI") != "true", "Spark or Java is missing"
        pytest.skip("spark: PySpark or Java is missing")


def test_a_sink_stores_a_batch_once(tmp_path: Path) -> None:
    assert stored_in(tmp_path / SINK) == {}
    first: list[Row] = [B, A]
    for query, rows in (("q", first), ("q", first), ("another", [A])):
        store(tmp_path / SINK, query, 0, rows)
    assert stored_in(tmp_path / SINK) == {("q", 0): [B, A], ("another", 0): [A]}


async def test_what_a_killed_query_has_begun_is_unknown(tmp_path: Path) -> None:
    history = History()
    query = _in_place_of_spark(history, tmp_path, then="go on")
    await query.start()
    await query.reach(Moment.SUNK)
    (tmp_path / "go").touch()
    await query.reach(Moment.READ)
    await query.kill()
    query.look_at_sink()
    assert query.messages_in_sink() == 1
    batches = [call for call in history.calls if isinstance(call, SparkBatch)]
    assert [(type(each), each.outcome, each.number, each.rows) for each in batches] == [
        (SparkBatch, Outcome.OK, 0, (SinkRow(*A),)),
        (SparkBatch, Outcome.UNKNOWN, 1, (SinkRow(*B),)),
        (SunkBatch, Outcome.OK, 0, (SinkRow(*A),)),
    ]
    assert len(history.calls) == 3


async def test_a_query_that_ends_by_itself_is_noticed(tmp_path: Path) -> None:
    history = History()
    query = _in_place_of_spark(history, tmp_path, then="end")
    await query.start()
    await query.reach(Moment.SUNK)
    await query.kill()
    ended: list[Call] = history.calls
    assert [type(each) for each in ended] == [SparkEnded]
    assert isinstance(ended[0], SparkEnded)
    assert "no server" in ended[0].why


def _in_place_of_spark(history: History, folder: Path, then: str) -> SparkProcess:
    script = folder / "program.py"
    script.write_text(PROGRAM.format(rows=[A, B]))
    return SparkProcess(history, "queue", ["127.0.0.1:1"], then, folder, under=(sys.executable, str(script)))


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.usefixtures("_needs_spark")
@pytest.mark.parametrize("mode", ["queue", "lease", "journal"])
async def test_a_round(mode: str, tmp_path: Path) -> None:
    plan = Plan(1, LAYOUTS["sqlite"], Scene.SPARK, with_proxies=True, accidents=6, spark_mode=mode)
    result = await run_round(plan, tmp_path)
    assert result.violations == []
    assert result.counts["spark_kills"] > 0
    assert result.counts["spark_batches"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.usefixtures("_needs_spark")
@pytest.mark.parametrize("name", OF_SPARK)
async def test_a_planted_fault_is_found(name: str, tmp_path: Path) -> None:
    under, fault = (sys.executable, "-m", "proof.torture.planted", name), FAULTS[name]
    for seed in range(1, ROUNDS + 1):
        plan = Plan(
            seed, LAYOUTS["sqlite"], Scene.SPARK, with_proxies=False, accidents=6, spark_mode=fault.spark_mode
        )  # fmt: skip
        folder = tmp_path / str(seed)
        folder.mkdir()
        result = await run_round(plan, folder, under=under, drain_within_s=60.0)
        if {violation.invariant for violation in result.violations} & fault.found_as:
            return
    raise AssertionError(f"{ROUNDS} rounds found nothing")
