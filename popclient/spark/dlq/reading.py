"""Where dead letters and the record of their redrives come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, url: str, *, redriven_too: bool = False, **options: object) -> DataFrame:
    """The dead letters in a broker's database.

    options: those of `spark.read.format("popmq")`, such as consumerGroup, topic, startingTimestamp, numPartitions.
    redriven_too: those that went back already as well.
    """
    letters = spark.read.format("popmq").option("url", url).options(**_written(options)).load()
    return letters if redriven_too else letters.where("redrive_state IS NULL")


def lineage(spark: SparkSession, url: str, *, plan_id: str | None = None, **options: object) -> DataFrame:
    """What became of what: the original message, the dead letter, the repair and its outcome, a row per redrive.

    options: consumerGroup, namespace, numPartitions.
    """
    if plan_id is not None:
        options["planId"] = plan_id
    return spark.read.format("popmq").option("url", url).option("view", "lineage").options(**_written(options)).load()


def _written(options: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in options.items()}
