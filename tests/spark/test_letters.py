"""Dead letters that a journal reads from `%DLQ%` topics: the columns of the database's dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from pyspark.sql import functions as sql

import popserver
from popclient import Message, Producer, SimpleConsumer
from popclient.admin import Admin
from popclient.spark import dlq
from popclient.spark.columns import schema_of
from popclient.spark.dead_letters.columns import MAP, view_of
from popclient.spark.journal.letters import LETTER_COLUMNS
from popclient.spark.journal.options import parse
from popclient.spark.message_columns import KEPT, SOURCES
from tests.spark.stream_job import UNKNOWN, letters_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def options(folder: Path, endpoint: str = "127.0.0.1:1", **more: str) -> dict[str, str]:
    journal = {"mode": "journal", "journalPath": str(folder / "journal"), "quietPeriod": "1500ms"}
    letters = {"topic": "%DLQ%arrivals", "columns": "dead_letters", "consumerGroup": "doctors"}
    return {"endpoints": endpoint, **journal, **letters, **more}


def test_the_columns_are_those_of_the_database(tmp_path: Path) -> None:
    assert schema_of(LETTER_COLUMNS) == schema_of(view_of("dead_letters", MAP).columns)
    assert parse(options(tmp_path)).schema == schema_of(LETTER_COLUMNS)


def test_a_journal_keeps_what_messages_have_and_their_origin() -> None:
    assert set(KEPT) == {*SOURCES, "origin_topic"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"topic": "%DLQ%arrivals,flights"},
            "columns='dead_letters' is not allowed; topic flights has no dead letters",
        ),
        ({"includeHeaders": "true"}, "includeHeaders='true' is not allowed; dead letters have the column properties"),
        ({"columns": "rabbit"}, "columns='rabbit' is not allowed; give popmq or kafka or dead_letters"),
    ],
)
def test_what_is_no_dead_letter_is_refused(tmp_path: Path, more: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(options(tmp_path, **more))


def test_the_same_letters_by_the_journal_and_from_the_database(spark: SparkSession, tmp_path: Path) -> None:
    """Except for what a message of the topic does not say; and repaired they are sent to where they came from."""
    with popserver.embedded(tmp_path / "popmq.db") as broker:
        with Admin(broker.endpoint) as admin:
            admin.create_group("arrivals", max_attempts=1)
        with (
            Producer(broker.endpoint) as producer,
            SimpleConsumer(broker.endpoint, "arrivals", "flights") as consumer,
        ):
            for number in range(3):
                producer.send(Message("flights", f"UA{number}", tag="UA", keys=["k"], properties={"a": str(number)}))
            for message in [each for _ in range(3) for each in consumer.receive(1)]:
                consumer.forward_to_dead_letter_queue(message, "no such flight")
        read = letters_of(spark, tmp_path, options(tmp_path, broker.endpoint))
        stored = dlq.read(spark, f"sqlite:///{tmp_path / 'popmq.db'}", consumerGroup="arrivals")
        names = [name for name in stored.columns if name not in UNKNOWN]
        assert rows(read, names) == rows(stored, names)
        assert all(row[name] is None for row in read.collect() for name in UNKNOWN)
        kinds = dlq.classify(read, "property:a")
        assert {(row["class"], row.example) for row in dlq.counts(kinds).collect()} == {
            (row.properties["a"], row.message_id) for row in stored.collect()
        }
        mended = dlq.repair(kinds.where("class <> '0'"), body="concat(decode(body, 'UTF-8'), '!')", tag="NULL")
        dlq.messages(mended).write.format("popmq").option("endpoints", broker.endpoint).mode("append").save()
        with SimpleConsumer(broker.endpoint, "again", "flights") as consumer:
            again = [each for _ in range(5) for each in consumer.receive(1)]
    assert sorted((each.text, each.tag) for each in again) == [
        ("UA0", "UA"), ("UA1", "UA"), ("UA1!", None), ("UA2", "UA"), ("UA2!", None),
    ]  # fmt: skip


def rows(frame: DataFrame, names: list[str]) -> list[str]:
    return sorted(str(row) for row in frame.select(*map(sql.col, names)).collect())
