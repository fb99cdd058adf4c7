"""docs/spark.md names every option that a mode takes."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from popclient.spark.server import SERVER_OPTIONS

DOCS = Path(__file__).parents[2] / "docs" / "spark.md"
# What the section about queues says for all modes.
OF_ALL = {*SERVER_OPTIONS, "mode", "subscribe", "filterExpression", "filterType", "subExpression", "columns"}


@pytest.mark.parametrize(("mode", "title"), [("queue", "Queues"), ("lease", "Leases"), ("journal", "Journals")])
def test_every_option_of_a_mode_is_in_its_section(mode: str, title: str) -> None:
    options = import_module(f"popclient.spark.{mode}.options")
    elsewhere = set() if mode == "queue" else {*OF_ALL, "includeHeaders"}
    section = DOCS.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)(?:=\w+)?`", section))
    assert {*options._NAMES, *options._ALIASES} - elsewhere - named == set()
