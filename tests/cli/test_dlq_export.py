"""popmq dlq export"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from popclient import Producer
from popclient.cli.dead_letters import export as dead_letter_export
from tests.support.shell import Shell

pa = pytest.importorskip("pyarrow", reason="Parquet is written by pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


# Those of docs/spark-options.md.
COLUMNS = [
    *("message_id", "topic", "consumer_group", "tag", "keys", "properties", "message_group", "message_type"),
    *("queue_id", "queue_offset", "body", "born_timestamp", "store_timestamp", "dead_timestamp"),
    *("delivery_attempt", "reason", "redrive_state", "plan_id", "id"),
]


@pytest.fixture
def dead(shell: Shell) -> list[str]:
    """The message ids of a text with everything, of one with nothing, and of one that is no text."""
    shell.ok("topic", "create", "flights", "--queues", "1")
    shell.ok("group", "create", "counters", "--max-attempts", "1")
    with Producer(shell.endpoint, "flights") as producer:
        ids = [
            producer.send("flights", "hé", tag="UA", keys=("k1", "k2"), properties={"gate": "7"}).message_id,
            producer.send("flights", "plain").message_id,
            producer.send("flights", b"\xff\xfe").message_id,
        ]
    shell.ok("message", "receive", "flights", "--group", "counters")
    shell.broker.clock.advance("31s")
    return ids


def export(shell: Shell, to: Path, *options: str) -> Any:
    said = shell("--json", "dlq", "export", "--group", "counters", "--to", str(to), *options)
    assert said.status == 0, said
    return said.document


@pytest.mark.user("U21")
def test_lines_of_json(shell: Shell, dead: list[str], tmp_path: Path) -> None:
    to = tmp_path / "letters.jsonl"
    assert export(shell, to) == {"group": "counters", "file": str(to), "exported": 3}
    first, second, third = (json.loads(line) for line in to.read_text().splitlines())
    assert [each["message_id"] for each in (first, second, third)] == dead
    assert (first["topic"], first["consumer_group"], first["tag"]) == ("flights", "counters", "UA")
    assert (first["keys"], first["properties"], first["body"]) == (["k1", "k2"], {"gate": "7"}, "hé")
    assert (first["dead_timestamp"], first["delivery_attempt"]) == ("2025-01-01T00:00:30.000Z", 1)
    assert (first["queue_id"], first["queue_offset"], second["queue_offset"]) == (0, 0, 1)
    assert first["redrive_state"] is None
    assert (second["keys"], second["properties"], second["tag"]) == ([], {}, None)
    assert (third["body"], base64.b64decode(third["body_base64"])) == (None, b"\xff\xfe")
    assert list(tmp_path.iterdir()) == [to]


@pytest.mark.user("U21")
def test_parquet_as_spark_would_read_it(shell: Shell, dead: list[str], tmp_path: Path) -> None:
    to = tmp_path / "letters.parquet"
    assert export(shell, to)["exported"] == 3
    table = parquet.read_table(to)
    assert table.column_names == COLUMNS
    first, second, third = table.to_pylist()
    assert [each["message_id"] for each in (first, second, third)] == dead
    assert first["dead_timestamp"] == datetime(2025, 1, 1, 0, 0, 30, tzinfo=UTC)
    assert (first["keys"], first["properties"]) == (["k1", "k2"], [("gate", "7")])
    assert [each["body"] for each in (first, second, third)] == ["hé".encode(), b"plain", b"\xff\xfe"]
    assert (second["queue_id"], second["queue_offset"]) == (0, 1)
    assert table.schema.field("properties").type == pa.map_(pa.string(), pa.string())


@pytest.mark.parametrize("name", ["none.parquet", "none.jsonl"])
def test_a_file_of_nothing(shell: Shell, tmp_path: Path, name: str) -> None:
    shell.ok("group", "create", "counters")
    assert export(shell, tmp_path / name)["exported"] == 0
    assert (tmp_path / name).exists()
    if name.endswith("parquet"):
        assert parquet.read_table(tmp_path / name).num_rows == 0


def test_many_come_in_row_groups(
    shell: Shell, dead: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_export, "ROWS_HELD", 2)
    export(shell, tmp_path / "letters.parquet")
    assert parquet.ParquetFile(tmp_path / "letters.parquet").num_row_groups == 2


def test_a_file_that_is_there_stays(shell: Shell, dead: list[str], tmp_path: Path) -> None:
    to = tmp_path / "letters.jsonl"
    to.write_text("mine")
    said = shell("dlq", "export", "--group", "counters", "--to", str(to))
    assert (said.status, f"{to} exists already; overwrite it with --force" in said.err) == (2, True)
    assert to.read_text() == "mine"
    export(shell, to, "--force", "--topic", "flights")
    assert len(to.read_text().splitlines()) == 3


@pytest.mark.parametrize("name", ["letters.parquet", "letters.jsonl"])
def test_what_breaks_off_leaves_nothing(
    shell: Shell, dead: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    to = tmp_path / name
    to.write_text("the old one")

    def full(_letter: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dead_letter_export, "row_of", full)
    said = shell("dlq", "export", "--group", "counters", "--to", str(to), "--force")
    assert (said.status, said.out) == (1, "")
    assert f"{to} cannot be written: No space left on device" in said.err
    assert [each.read_text() for each in tmp_path.iterdir()] == ["the old one"]


def test_without_pyarrow(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letter_export, "find_spec", lambda _name: None)
    said = shell("dlq", "export", "--group", "counters", "--to", str(tmp_path / "letters.parquet"))
    assert said.status == 2
    assert "needs pyarrow, which is not installed: pip install pyarrow, or name a .jsonl file" in said.err
