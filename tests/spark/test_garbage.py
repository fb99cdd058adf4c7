"""The garbage collector of Spark's workers does not look at the modules after each task."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from popclient.spark.cluster.sending import guarded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

USES = """
import gc
from popclient.spark.cluster.garbage import keep_out_modules
for _ in range(3):
    keep_out_modules()
    print(gc.get_freeze_count())
"""


class KeptOut(DataSource):
    """A row for each task: the number of objects that its worker's collector does not look at."""

    @classmethod
    def name(cls) -> str:
        return "kept-out"

    def schema(self) -> str:
        return "kept_out bigint"

    def reader(self, schema: StructType) -> DataSourceReader:
        return guarded(_Reader())


class _Reader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(6)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"kept_out": pa.array([gc.get_freeze_count()], pa.int64())})


def test_a_worker_collects_without_the_modules_from_its_second_task_on(spark: SparkSession) -> None:
    from tests.spark import test_garbage  # the source must have a name that workers can import

    spark.dataSource.register(test_garbage.KeptOut)
    counts = spark.read.format("kept-out").load().toArrow()["kept_out"].to_pylist()
    assert len(counts) == 6
    assert max(counts) > 30_000


def test_no_other_process_is_changed() -> None:
    ended = subprocess.run([sys.executable, "-c", USES], capture_output=True, text=True, check=True, timeout=60)
    count = "import gc; print(gc.get_freeze_count())"  # Python 3.12 freezes some objects of its own
    at_start = subprocess.check_output([sys.executable, "-c", count], text=True).strip()
    assert ended.stdout.split() == [at_start] * 3
