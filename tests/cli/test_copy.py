"""`popmq db copy`: its answers in words and in JSON, its progress, its refusals."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

import popclient.cli
from popserver.database import migrate
from popserver.database.database import Database
from popserver.serve.copying import CopyBar
from tests.support.open_store import open_store


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def source(sqlite_url: str) -> str:
    with open_store(sqlite_url) as store:
        store.send(store.topic(), 3)
    return sqlite_url


def test_words_json_and_a_refusal(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = f"sqlite:///{tmp_path}/new.db"
    command = ["db", "copy", "--from", source, "--to", target]
    assert popclient.cli.main([*command, "--dry-run"]) == 0
    said = capsys.readouterr()
    assert f"would copy 5 rows, 0.3 MiB from {source} to {target}; nothing has changed" in said.out
    assert "  message " in said.out
    assert "check the source …" in said.err
    assert popclient.cli.main([*command, "--json"]) == 0
    said = capsys.readouterr()
    facts = json.loads(said.out)
    assert (facts["rows"], facts["tables"]["message"], facts["continued"]) == (5, 3, False)
    steps = [json.loads(line)["step"] for line in said.err.splitlines()]
    assert steps == ["check the source", "copy rows", "create indexes", "verify rows", "check the copy"]
    assert popclient.cli.main(command) == 1
    said = capsys.readouterr()
    assert "popmq: sqlite:///" in said.err
    assert "is not empty, its table" in said.err
    assert said.out == ""
    migrate.check(database := Database(target))
    database.close()


def test_urls_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        popclient.cli.main(["db", "copy", "--from", "sqlite:///a.db"])
    assert "--to" in capsys.readouterr().err


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 0.0, 0.0, 0.1, 10.0, 10.0, 12.5])
    monkeypatch.setattr("popserver.serve.copying.time.perf_counter", lambda: next(moments))
    terminal = Terminal()
    bar = CopyBar(terminal, as_json=False)
    bar.step("copy rows", 1_000)
    bar.advance(200, before=True)
    bar.advance(300)
    bar.clear()
    drawn = terminal.getvalue().split("\r\x1b[K")
    assert drawn[1] == f"copy rows      {'░' * 24}   0%  0 of 1,000"
    assert drawn[2:] == [f"copy rows      {'█' * 12}{'░' * 12}  50%  500 of 1,000  30/s, 17 s left", ""]
    assert bar.elapsed_s() == 12.5
