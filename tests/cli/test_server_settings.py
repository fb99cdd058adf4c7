"""Where a server's settings come from, and what is said when they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

import popclient.cli
from popserver.in_process import embedded

BROKEN = {
    "no TOML": b"port = = 1",
    "no text": b"\xff\xfe\x00",
    "an unknown key": b"prot = 1",
    "a wrong value": b'port = "many"',
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("words", [["serve"], ["db", "check"]], ids=" ".join)
def test_a_broken_settings_file_is_a_usage_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    content: bytes,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "popmq.toml").write_bytes(content)
    assert popclient.cli.main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("popmq: ")
    assert said.err.count("\n") == 1


def test_a_check_makes_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert popclient.cli.main(["db", "check", "--database-url", f"sqlite:///{tmp_path / 'popmq.db'}"]) == 1
    assert "does not exist; make it with: popmq db upgrade" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_embedded_broker_is_what_its_arguments_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "popmq.toml").write_text('retention = "1s"\n')
    monkeypatch.setenv("POPMQ_MIN_INVISIBLE", "1s")
    with embedded("plain.db", manual_clock=True) as broker:
        assert (broker.app.config.retention, broker.app.config.min_invisible) == (72 * 3_600_000, 10_000)
        assert broker.database_url == "sqlite:///plain.db"
    assert (tmp_path / "plain.db").exists()
