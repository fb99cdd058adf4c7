"""A Spark process that runs one job per line: `python -m benchmarks.spark_load [JDBC-JAR]`.

Each figure counts the CPU time of all processes: the JVM, its Python workers, and the named processes with their
children. So a figure is for one core, whatever the number of cores and their other work.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from benchmarks.machine import FamilyCpu
from popclient.spark import session
from popclient.spark.columns import schema_of
from popclient.spark.dead_letters.columns import DEAD_LETTERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DONE: Final = "popmq-figures "
PARTITIONS: Final = 4


NARROW: Final = {"id": "bigint", "reason": "string"}  # two columns, to count reasons
# Spark's columns of a dead letter, from JDBC's columns.
_MADE: Final = {
    "message_id": "hex(message_id)",
    "keys": "from_json(keys, 'array<string>')",
    "properties": "from_json(properties, 'map<string,string>')",
    "born_timestamp": "timestamp_millis(born_at_ms)",
    "store_timestamp": "timestamp_millis(stored_at_ms)",
    "dead_timestamp": "timestamp_millis(dead_at_ms)",
}
_SAME: Final = [f"{_MADE.get(column.name, column.name)} AS {column.name}" for column in DEAD_LETTERS.columns]


class RowsSource(DataSource):
    """The view as SQLAlchemy's rows, with a Python object per value: the simplest source."""

    @classmethod
    def name(cls) -> str:
        return "rows"

    def schema(self) -> str:
        return schema_of(DEAD_LETTERS.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _RowsReader(self.options, schema)


class _RowsReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._url = options["url"]
        self._ids = (int(options["startingid"]), int(options["endingid"]))
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        first, end = self._ids
        step = -(-(end - first) // PARTITIONS)
        return [InputPartition((start, min(start + step, end))) for start in range(first, end, step)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from sqlalchemy import create_engine, text

        schema = to_arrow_schema(self._schema, timezone="UTC")
        query = text("SELECT * FROM dead_letters WHERE id >= :first AND id < :end")
        first, end = partition.value
        with create_engine(self._url).connect() as conn:
            result = conn.execution_options(yield_per=4_096).execute(query, {"first": first, "end": end})
            for rows in result.partitions():
                yield pa.RecordBatch.from_pylist([_row(row._mapping) for row in rows], schema=schema)


def _row(found: Any) -> dict[str, Any]:
    return {
        **found,
        "message_id": found["message_id"].hex().upper(),
        "keys": json.loads(found["keys"] or "[]"),
        "properties": list(json.loads(found["properties"] or "{}").items()),
        "born_timestamp": found["born_at_ms"] * 1_000,
        "store_timestamp": found["stored_at_ms"] * 1_000,
        "dead_timestamp": found["dead_at_ms"] * 1_000,
    }


class EmptySource(DataSource):
    """A stream of one row per micro-batch: the cost of Spark itself."""

    @classmethod
    def name(cls) -> str:
        return "empty"

    def schema(self) -> str:
        return "id bigint"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return _EmptyReader(int(self.options["batches"]))


class _EmptyReader(DataSourceStreamReader):
    def __init__(self, batches: int) -> None:
        self._batches = batches

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"id": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
        return {"id": min(start["id"] + 1, self._batches)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(number) for number in range(start["id"], end["id"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"id": pa.array([partition.value], pa.int64())})

    def commit(self, end: dict[str, int]) -> None:
        pass


def read(spark: SparkSession, given: dict[str, Any]) -> dict[str, float]:
    """Read dead letters without a sink; first all of them once, because the JVM compiles what runs often."""
    first, end = 1, given["rows"] + 1
    _into_nothing(_dead_letters(spark, given, first, end))
    return _measured(given, lambda: _into_nothing(_dead_letters(spark, given, first, end)))


def _dead_letters(spark: SparkSession, given: dict[str, Any], first: int, end: int) -> DataFrame:
    kind, url = given["kind"], given["url"]
    if kind.startswith("jdbc"):
        bounds: dict[str, Any] = {"partitionColumn": "id", "lowerBound": first, "upperBound": end}
        view = f"(SELECT * FROM dead_letters WHERE id >= {first} AND id < {end}) AS letters"
        reading = spark.read.format("jdbc").options(
            url=url, dbtable=view, fetchsize=4_096, numPartitions=PARTITIONS, **bounds
        )
        frame = reading.option("driver", "org.postgresql.Driver").load()
        if given["narrow"]:
            return frame.select(*NARROW)
        return frame.selectExpr(*_SAME) if kind == "jdbc" else frame
    options = {"url": url, "startingId": first, "endingId": end}
    if kind == "rows":
        return spark.read.format("rows").options(**options).load()
    reading = spark.read.format("popmq").options(numPartitions=PARTITIONS, **options, **given["options"])
    if given["narrow"]:
        reading = reading.schema(", ".join(f"{name} {kind}" for name, kind in NARROW.items()))
    return reading.load()


def micro_batch(spark: SparkSession, given: dict[str, Any]) -> dict[str, float]:
    """The median wall time of a micro-batch of one row in ms, without the first three."""
    checkpoint = tempfile.mkdtemp(prefix="popmq-bench-")
    reading = spark.readStream.format(given["format"]).options(**given["options"])
    writing = reading.load().writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writing.trigger(processingTime="0 seconds").start()
    try:
        taken: dict[int, float] = {}
        while len(taken) < given["batches"]:
            time.sleep(0.02)
            for each in query.recentProgress:
                if each.numInputRows:
                    taken[each.batchId] = each.durationMs["triggerExecution"]
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
    counted = sorted(ms for _, ms in sorted(taken.items())[3:])
    return {"ms": counted[len(counted) // 2]}


def to_parquet(spark: SparkSession, given: dict[str, Any]) -> dict[str, float]:
    """Copy rows from a topic, or from Parquet, to Parquet."""
    reading = spark.read.format(given["format"]).options(**given["options"])
    frame = reading.load(given["path"]) if "path" in given else reading.load()
    return _measured(given, lambda: frame.write.mode("overwrite").parquet(given["to"]))


def _into_nothing(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _measured(given: dict[str, Any], work: Any) -> dict[str, float]:
    used, begun = FamilyCpu(*given["pids"], os.getpid()), time.perf_counter()
    work()
    return {
        "cpu_s": used.seconds(),
        "seconds": time.perf_counter() - begun,
        "rows": given["rows"],
    }


WORK: Final = {"read": read, "micro_batch": micro_batch, "to_parquet": to_parquet}


def main(jar: str | None) -> None:
    settings = {"spark.sql.streaming.numRecentProgressUpdates": "1000"} | ({"spark.jars": jar} if jar else {})
    spark = session("benchmarks", memory="2g", settings=settings)
    for source in (RowsSource, EmptySource):
        spark.dataSource.register(source)
    print(DONE + json.dumps({}), flush=True)
    for line in sys.stdin:
        given = json.loads(line)
        print(DONE + json.dumps(WORK[given["do"]](spark, given)), flush=True)
    spark.stop()


if __name__ == "__main__":
    from benchmarks import spark_load  # the sources must have a name that workers can import

    spark_load.main(sys.argv[1] if len(sys.argv) > 1 and Path(sys.argv[1]).is_file() else None)
