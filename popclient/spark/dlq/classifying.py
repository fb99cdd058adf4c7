"""Into which class a dead letter falls: by a fact of it, by SQL, or by a function of the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

CLASS: Final = "class"
UNCLASSIFIED: Final = "(none)"
# The words of `popmq dlq classify --by`; what is none of them is SQL.
_FACTS: Final = {
    "reason": "reason",
    "topic": "topic",
    "tag": "tag",
    "message_group": "message_group",
    "attempt": "CAST(delivery_attempt AS STRING)",
}
_PROPERTY: Final = "property:"


def classify(dead: DataFrame, by: str | Column | Callable[[Row], str | None] = "reason") -> DataFrame:
    """The dead letters with one more column, `class`: a string, "(none)" where there is none.

    by: a fact (reason, topic, tag, message_group, attempt, property:NAME), a SQL expression over the columns, a Spark
    column, or a function of a row, which Spark calls in its workers.
    """
    return dead.withColumn(CLASS, sql.coalesce(_column(dead, by).cast("string"), sql.lit(UNCLASSIFIED)))


def counts(classified: DataFrame) -> DataFrame:
    """A row per class, the largest first: class, messages, share (0 to 1), oldest and newest death, one message id."""
    grouped = classified.groupBy(CLASS).agg(
        sql.count("*").alias("messages"),
        sql.min("dead_timestamp").alias("oldest"),
        sql.max("dead_timestamp").alias("newest"),
        sql.min_by("message_id", "id").alias("example"),
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
