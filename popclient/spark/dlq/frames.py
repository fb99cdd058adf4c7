"""Data frames of dead letters and of redrives, and the classes of dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sql

from popclient.spark.versions import refuse_other_spark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, Row, SparkSession


def read(spark: SparkSession, url: str, *, redriven_too: bool = False, **options: object) -> DataFrame:
    """The dead letters in a broker's database.

    options: those of `spark.read.format("popmq")`, such as consumerGroup, topic, startingTimestamp, numPartitions.
    redriven_too: includes dead letters that were redriven already. Raises `ValueError` for a Spark that is none of 4.0
    to 4.3; the other functions take any frame with these columns.
    """
    letters = _reader(spark, url).options(**_written(options)).load()
    return letters if redriven_too else letters.where("redrive_state IS NULL")


def lineage(spark: SparkSession, url: str, *, plan_id: str | None = None, **options: object) -> DataFrame:
    """A row for each redrive: the original message, the dead letter, its repair and its outcome.

    options: consumerGroup, namespace, numPartitions.
    """
    if plan_id is not None:
        options["planId"] = plan_id
    return _reader(spark, url).option("view", "lineage").options(**_written(options)).load()


def _reader(spark: SparkSession, url: str) -> DataFrameReader:
    refuse_other_spark()
    return spark.read.format("popmq").option("url", url)


def _written(options: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in options.items()}


CLASS: Final = "class"
UNCLASSIFIED: Final = "(none)"
# The names that `popmq dlq classify --by` has too; any other text is SQL.
_FACTS: Final = {
    "reason": "reason",
    "topic": "topic",
    "tag": "tag",
    "message_group": "message_group",
    "attempt": "CAST(delivery_attempt AS STRING)",
}
_PROPERTY: Final = "property:"


def classify(dead: DataFrame, by: str | Column | Callable[[Row], str | None] = "reason") -> DataFrame:
    """Adds a column `class`: a string, "(none)" if there is no class.

    by: reason, topic, tag, message_group, attempt, property:NAME, a SQL expression over the columns, a Spark column, or
    a function of a row, which Spark calls in its workers.
    """
    return dead.withColumn(CLASS, sql.coalesce(_column(dead, by).cast("string"), sql.lit(UNCLASSIFIED)))


def counts(classified: DataFrame) -> DataFrame:
    """A row for each class, the largest first: class, messages, share (0 to 1), oldest, newest (time of death), example
    (a message id)."""
    # Those that a journal has read have no id.
    order = sql.coalesce("id", sql.unix_micros("dead_timestamp"))
    grouped = classified.groupBy(CLASS).agg(
        sql.count("*").alias("messages"),
        sql.min("dead_timestamp").alias("oldest"),
        sql.max("dead_timestamp").alias("newest"),
        sql.min_by("message_id", order).alias("example"),
    )
    total = grouped.agg(sql.sum("messages").alias("total"))
    share = (sql.col("messages") / sql.col("total")).alias("share")
    return (
        grouped.crossJoin(total)
        .select(CLASS, "messages", share, "oldest", "newest", "example")
        .orderBy(sql.desc("messages"), CLASS)
    )


def _column(dead: DataFrame, by: str | Column | Callable[[Row], str | None]) -> Column:
    if isinstance(by, str):
        if by.startswith(_PROPERTY):
            return sql.col("properties")[by.removeprefix(_PROPERTY)]
        return sql.expr(_FACTS.get(by, by))
    if callable(by):
        # The Arrow kind of such a function would need pandas.
        return sql.udf(by, "string", useArrow=False)(sql.struct(*[dead[name] for name in dead.columns]))
    return by
