"""Repairs of messages that are to be redriven, and a preview of the redrive."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sql

from popclient.admin import Repair

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

REPAIR: Final = "repair"
_TYPES: Final = {"body": "binary", "tag": "string", "keys": "array<string>", "properties": "map<string,string>"}
_TYPE: Final = "struct<" + ",".join(f"{name}:{kind}" for name, kind in _TYPES.items()) + ">"
# The values in a repair that remove a field; NULL does not change the field. A body cannot be removed.
_NOTHING: Final = {"tag": "''", "keys": "array()", "properties": "map()"}


def repair(
    dead: DataFrame,
    by: Callable[[Row], Repair | None] | None = None,
    *,
    body: str | Column | None = None,
    tag: str | Column | None = None,
    keys: str | Column | None = None,
    properties: str | Column | None = None,
) -> DataFrame:
    """Adds a column `repair` with the changes of each dead letter; NULL for a dead letter without changes.

    body, tag, keys, properties: SQL expressions or Spark columns of the new values; a value equal to the old one is no
    change. NULL removes tag, keys or properties, and does not change the body.
    by: a function of a row instead, which Spark calls in its workers.
    """
    wanted = {"body": body, "tag": tag, "keys": keys, "properties": properties}
    given = {name: value for name, value in wanted.items() if value is not None}
    if (by is None) == (not given):
        raise ValueError("repair needs a function of a row, or new values of body, tag, keys or properties: give one")
    if by is not None:
        called = sql.udf(_Called(by), _TYPE, useArrow=False)(sql.struct(*[dead[name] for name in dead.columns]))
        return dead.withColumn(REPAIR, called)
    parts = [_different(name, given[name]) if name in given else _unchanged(name) for name in _TYPES]
    something = reduce(or_, [part.isNotNull() for part in parts])
    return dead.withColumn(REPAIR, sql.when(something, sql.struct(*parts)))


def plan(dead: DataFrame, *, target: str | None = None, reason: str | Column = "") -> DataFrame:
    """A preview of `redrive`: dead_letter_id, message_id, topic, target, change, changed, reason. Changes nothing.

    target: NULL sends back to the group alone. change: NONE or REPAIR; changed: the names of the changed fields.
    reason: see `redrive`.
    """
    changed = changed_of(dead)
    return dead.select(
        sql.col("id").alias("dead_letter_id"),
        "message_id",
        "topic",
        sql.lit(target).cast("string").alias("target"),
        sql.when(sql.size(changed) > 0, "REPAIR").otherwise("NONE").alias("change"),
        changed.alias("changed"),
        reason_of(dead, reason).alias("reason"),
    )


def messages(dead: DataFrame, *, target: str | None = None) -> DataFrame:
    """These dead letters as rows for `write.format("popmq")`, each to the topic it came from, with its repair.

    target: the topic of those whose column `topic` is NULL: RocketMQ's proxy does not say where they came from.

    For servers that have no redrives, such as RocketMQ's. Columns: topic, body, tag, keys, properties, message_group,
    lite_topic. Unlike after `redrive`, all groups of the topic get the messages, and nothing records that they were
    sent: a job that runs again sends them again.
    """
    repaired = REPAIR in dead.columns
    values = {
        name: sql.coalesce(sql.col(REPAIR)[name], sql.col(name)) if repaired else sql.col(name) for name in _TYPES
    }
    values["tag"] = sql.nullif(values["tag"], sql.lit(""))  # a repair removes it so
    topic = sql.coalesce("topic", sql.lit(target).cast("string")).alias("topic")
    return dead.select(topic, *(value.alias(name) for name, value in values.items()), "message_group", "lite_topic")


def changed_of(dead: DataFrame) -> Column:
    """The names of the fields that a row's repair changes."""
    if REPAIR not in dead.columns:
        return sql.array().cast("array<string>")
    names = [sql.when(sql.col(REPAIR)[name].isNotNull(), sql.lit(name)) for name in _TYPES]
    return sql.array_compact(sql.array(*names))


def repair_of(dead: DataFrame) -> Column:
    """The column `repair`; NULL if the frame has none."""
    return sql.col(REPAIR) if REPAIR in dead.columns else sql.lit(None).cast(_TYPE).alias(REPAIR)


def reason_of(dead: DataFrame, reason: str | Column) -> Column:
    """The reason of each redrive: a text for all, a column, or the class of a classified frame."""
    if not isinstance(reason, str):
        return reason
    return sql.col("class") if not reason and "class" in dead.columns else sql.lit(reason)


class _Called:
    """Calls a user's function of a row; returns its result as a struct for Spark."""

    def __init__(self, by: Callable[[Row], Repair | None]) -> None:
        self._by = by

    def __call__(self, row: Row) -> tuple[object, ...] | None:
        found = self._by(row)
        if found is None or not found.changed:
            return None
        body = found.body.encode() if isinstance(found.body, str) else found.body
        keys = None if found.keys is None else list(found.keys)
        return body, found.tag, keys, None if found.properties is None else dict(found.properties)


def _different(name: str, value: str | Column) -> Column:
    wanted = (sql.expr(value) if isinstance(value, str) else value).cast(_TYPES[name])
    same = _comparable(name, wanted).eqNullSafe(_comparable(name, sql.col(name)))
    if name in _NOTHING:
        wanted = sql.coalesce(wanted, sql.expr(_NOTHING[name]).cast(_TYPES[name]))
    return sql.when(~same, wanted).alias(name)


def _unchanged(name: str) -> Column:
    return sql.lit(None).cast(_TYPES[name]).alias(name)


def _comparable(name: str, value: Column) -> Column:
    """Spark cannot compare maps."""
    return sql.array_sort(sql.map_entries(value)) if name == "properties" else value
