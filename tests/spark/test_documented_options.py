"""docs/spark-options.md names every option that a mode takes."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from popclient.spark.dead_letters import options as dead_letters
from popclient.spark.journal import options as journal
from popclient.spark.lease import options as lease
from popclient.spark.options import SERVER_OPTIONS
from popclient.spark.queue import options as queue
from popclient.spark.sink import writer as sink

DOCS = Path(__file__).parents[2] / "docs" / "spark-options.md"
# What the section about queues says for all modes.
OF_ALL = {*SERVER_OPTIONS, "mode", "subscribe", "filterExpression", "filterType", "subExpression", "columns"}


@pytest.mark.parametrize(("mode", "title"), [("queue", "Queues"), ("lease", "Leases"), ("journal", "Journals")])
def test_every_option_of_a_mode_is_in_its_section(mode: str, title: str) -> None:
    options = import_module(f"popclient.spark.{mode}.options")
    elsewhere = set() if mode == "queue" else {*OF_ALL, "includeHeaders"}
    section = DOCS.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)(?:=\w+)?`", section))
    assert {*options.TABLE.names, *options.TABLE.aliases} - elsewhere - named == set()


def test_every_table_fills_the_fields_of_its_mode() -> None:
    assert set(queue.TABLE.fields) == set(queue.QueueReadOptions._fields)
    assert set(lease.TABLE.fields) == set(lease.LeaseOptions._fields)
    assert set(journal.TABLE.fields) == set(journal.JournalOptions._fields)
    assert set(sink.TABLE.fields) == set(sink.SinkOptions._fields)
    in_tables = {field for table in dead_letters.TABLES.values() for field in table.fields}
    assert in_tables == set(dead_letters.DeadLetterOptions._fields)
