"""Which versions of Spark are accepted, and the sentences for the others and for what an older one lacks."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

import pyspark
from pyspark.sql.types import StructType

from popclient._version import VERSION
from popclient.spark import dlq, register, session
from popclient.spark.modes import DEAD_LETTERS, MODES, Mode
from popclient.spark.streams import OlderStream
from popclient.spark.versions import has_admission_control, refuse_other_spark
from pyspark_popmq import DefaultSource
from tests.spark.stepping import ALL_COLUMNS

TOPIC = {"endpoints": "127.0.0.1:8081", "topic": "t", "consumerGroup": "g"}
LEASE = {**TOPIC, "mode": "lease", "leaseOwner": "o"}
JOURNAL = {**TOPIC, "mode": "journal", "journalPath": "j"}
# No attribute of a session is touched before the version is checked.
NO_SESSION: Any = None


@pytest.fixture
def as_version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    version: str = request.param
    monkeypatch.setattr(pyspark, "__version__", version)
    return version


@pytest.mark.parametrize("as_version", ["4.0.0", "4.0.5", "4.1.4", "4.2.1", "4.3.0", "4.3.12"], indirect=True)
def test_versions_that_are_accepted(as_version: str) -> None:
    refuse_other_spark()
    assert "message_id string" in DefaultSource(TOPIC).schema()


@pytest.mark.parametrize("as_version", ["4.4.0", "4.30.0", "5.0.0"], indirect=True)
@pytest.mark.parametrize("wanted", ["schema", "writer", "streamWriter"])
def test_a_newer_version_is_refused(as_version: str, wanted: str) -> None:
    arguments = () if wanted == "schema" else (ALL_COLUMNS, False)
    with pytest.raises(ValueError) as refusal:
        getattr(DefaultSource(TOPIC), wanted)(*arguments)
    assert str(refusal.value) == (
        f"PopMQ {VERSION} needs Spark 4.0 to 4.3, and this is Spark {as_version}; run the job on a cluster of Spark"
        " 4.3, with pip install 'pyspark>=4.0,<4.4' for its driver"
    )


@pytest.mark.parametrize("as_version", ["3.5.7"], indirect=True)
@pytest.mark.parametrize(
    "begun", [lambda: session(), lambda: register(NO_SESSION), lambda: dlq.read(NO_SESSION, "sqlite:///popmq.db")]
)
def test_spark_3_is_refused_with_the_page_of_its_recipe(as_version: str, begun: object) -> None:
    assert callable(begun)
    with pytest.raises(ValueError) as refusal:
        begun()
    assert str(refusal.value) == (
        f"PopMQ {VERSION} needs Spark 4.0 to 4.3, and this is Spark 3.5.7, which has no data sources in Python;"
        " docs/spark-older.md#spark-35 reads dead letters and messages without them, or pip install"
        " 'pyspark>=4.0,<4.4' for a newer cluster"
    )


@pytest.mark.parametrize("as_version", ["4.0.5", "4.1.4"], indirect=True)
@pytest.mark.parametrize(("mode", "options"), [("lease", LEASE), ("journal", JOURNAL)])
def test_modes_that_need_admission_control(as_version: str, mode: str, options: dict[str, str]) -> None:
    """When the frame is made, which is before the query starts."""
    with pytest.raises(ValueError) as refusal:
        DefaultSource(options).schema()
    assert str(refusal.value) == (
        f"option mode='{mode}' needs Spark 4.2 or newer, and this is Spark {as_version}; use mode='queue', or a newer"
        " Spark"
    )


@pytest.mark.parametrize("as_version", ["4.0.5", "4.1.4"], indirect=True)
@pytest.mark.parametrize(
    ("mode", "options", "refused"),
    [
        (MODES["queue"], {**TOPIC, "maxOffsetsPerTrigger": "400"}, "maxOffsetsPerTrigger"),
        (MODES["queue"], {**TOPIC, "maxMessagesPerTrigger": "400"}, "maxOffsetsPerTrigger"),
        (DEAD_LETTERS, {"url": "sqlite:///popmq.db", "maxRowsPerTrigger": "400"}, "maxRowsPerTrigger"),
    ],
)
def test_limits_that_need_admission_control(as_version: str, mode: Mode, options: dict[str, str], refused: str) -> None:
    with pytest.raises(ValueError) as refusal:
        mode.stream_reader(options, StructType())
    assert str(refusal.value) == (
        f"option {refused}=400 needs Spark 4.2 or newer, and this is Spark {as_version}; leave it out: a batch then has"
        " all that is there"
    )
    without = {name: value for name, value in options.items() if "PerTrigger" not in name}
    assert type(mode.stream_reader(without, StructType())) is OlderStream


@pytest.mark.skipif(not has_admission_control(), reason="for Spark 4.2 and newer")
@pytest.mark.parametrize("as_version", ["4.2.1", "4.3.0"], indirect=True)
def test_a_newer_version_gets_the_stream_itself(as_version: str) -> None:
    for mode in MODES.values():
        options = {"queue": TOPIC, "lease": LEASE, "journal": JOURNAL}[mode.name]
        assert type(mode.stream_reader(options, ALL_COLUMNS)).__name__ == mode.stream.partition(".")[2]
