"""Dead letters sorted into classes, and repaired, before anything moves."""

from __future__ import annotations

from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from popclient.admin import Repair
from popclient.spark import dlq
from tests.spark.filled import body_of, fill

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

COUNT = 100


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('dlq')}/popmq.db"
    fill(url, COUNT + 1)
    return url


@pytest.fixture
def dead(spark: SparkSession, url: str) -> DataFrame:
    return dlq.read(spark, url)


def far(row: Row) -> str | None:
    distance = row.properties.get("distance")
    return None if distance is None else ("far" if int(distance) > 50 else "near")


WAYS: dict[Any, dict[str, int]] = {
    "reason": {"the hold ended, and no attempt remains": 100},
    "topic": {"flights": 80, "hotels": 20},
    "tag": {"UA": 50, "(none)": 50},
    "attempt": {"3": 100},
    "property:origin": {"JFK": 50, "(none)": 50},
    "CASE WHEN queue_offset % 10 = 0 THEN 'tenth' ELSE 'other' END": {"other": 90, "tenth": 10},
    far: {"(none)": 50, "near": 25, "far": 25},
}


def test_classes(dead: DataFrame) -> None:
    several = [dlq.classify(dead, by).withColumn("by", sql.lit(str(by))) for by in WAYS]
    found: dict[str, dict[str, int]] = {}
    for row in reduce(DataFrame.union, several).groupBy("by", dlq.CLASS).count().collect():
        found.setdefault(row.by, {})[row["class"]] = row["count"]
    assert found == {str(by): classes for by, classes in WAYS.items()}


def test_a_column_is_a_class_and_counts_say_more(dead: DataFrame) -> None:
    rows = dlq.counts(dlq.classify(dead, sql.when(sql.col("topic") == "hotels", "rooms").otherwise("planes"))).collect()
    assert [(row["class"], row.messages, row.share) for row in rows] == [("planes", 80, 0.8), ("rooms", 20, 0.2)]
    assert rows[0].example == dead.where("id = 2").collect()[0].message_id
    assert isinstance(rows[0].oldest, datetime)
    assert rows[0].oldest < rows[0].newest


def test_a_repair_is_what_is_different(dead: DataFrame) -> None:
    """Rows for which the new value is the old one go back as they are."""
    repaired = dlq.repair(
        dead,
        body="CASE WHEN queue_offset % 10 = 0 THEN concat('mended ', decode(body, 'UTF-8')) ELSE body END",
        tag="upper(tag)",
        properties="map_filter(properties, (name, value) -> name != 'distance')",
    )
    rows = {row.queue_offset: row["repair"] for row in repaired.collect()}
    for i, found in rows.items():
        if i % 10 == 0:
            assert (bytes(found.body), found.tag, found["keys"], found.properties) == (
                b"mended " + body_of(i),
                None,
                None,
                None,
            )
        elif i % 2 == 0:
            assert found is None
        else:
            assert (found.body, found.tag, found.properties) == (None, None, {"origin": "JFK"})
    plan = dlq.plan(repaired, target="again", reason="mended").orderBy("dead_letter_id").collect()
    assert [tuple(row) for row in plan[:3]] == [
        (1, "own-id-0", "hotels", "again", "REPAIR", ["body"], "mended"),
        (2, "01" + "1".zfill(32), "flights", "again", "REPAIR", ["properties"], "mended"),
        (3, "01" + "2".zfill(32), "flights", "again", "NONE", [], "mended"),
    ]


def test_what_is_taken_away_is_empty(dead: DataFrame) -> None:
    """A message has a body always: NULL leaves it as it is."""
    emptied = dlq.repair(dead.where("id = 2"), body="NULL", tag="NULL", keys="NULL", properties="NULL")
    found = emptied.collect()[0]["repair"]
    assert (found.body, found.tag, found["keys"], found.properties) == (None, "", [], {})
    [row] = dlq.plan(dlq.repair(dead.where("id = 2"), body="get_json_object('{}', '$.none')")).collect()
    assert (row.change, row.changed) == ("NONE", [])


def mended(row: Row) -> Repair | None:
    if row.tag is None:
        return None
    return Repair(body=f"mended {row.queue_offset}", keys="k", properties={**row.properties, "by": "hand"})


def test_a_function_repairs(dead: DataFrame) -> None:
    repaired = dlq.repair(dlq.classify(dead, "tag"), mended)
    rows = {row.queue_offset: row["repair"] for row in repaired.collect()}
    assert rows[0] is None
    found = rows[1]
    assert (bytes(found.body), found.tag, found["keys"]) == (b"mended 1", None, ["k"])
    assert found.properties == {"origin": "JFK", "distance": "1", "by": "hand"}
    plan = dlq.plan(repaired).where("change = 'REPAIR'").collect()
    assert len(plan) == 50
    assert (plan[0].changed, plan[0].reason, plan[0].target) == (["body", "keys", "properties"], "UA", None)


def test_wrong_calls_are_named(dead: DataFrame) -> None:
    with pytest.raises(ValueError, match="give one"):
        dlq.repair(dead)
    with pytest.raises(ValueError, match="give one"):
        dlq.repair(dead, mended, tag="'x'")
    with pytest.raises(ValueError, match="plan_id is blank"):
        dlq.redrive(dead, "127.0.0.1:1", group="billing", plan_id=" ")
    with pytest.raises(ValueError, match="rate is -1 messages a second"):
        dlq.redrive(dead, "127.0.0.1:1", group="billing", plan_id="p", rate=-1)
