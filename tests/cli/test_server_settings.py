"""Where a server's settings come from, and what is said when they are wrong."""

from __future__ import annotations

import json
import resource
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import popclient.cli
from popclient import Message, Producer
from popserver.app import App
from popserver.config import GivenConfig
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


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("port", "99999", "give 65535 or less"),
        ("port", "-1", "give 0 or more"),
        ("port", "many", "give a whole number"),
        ("workers", "0", "give 1 or more"),
        ("transaction_timeout", "0s", "give more than 0"),
        ("durability", "none", "give 'full' or 'relaxed'"),
        ("auth", "perhaps", "give true or false"),
    ],
)
def test_a_wrong_value_is_told_with_its_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, value: str, wanted: str
) -> None:
    monkeypatch.setenv(f"POPMQ_{option.upper()}", value)
    assert popclient.cli.main(["db", "check"]) == 2
    assert capsys.readouterr().err == f"popmq: {option}={value!r}: {wanted}\n".replace("='0s'", "=0")


def test_an_unknown_setting_leads_to_the_one_that_was_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "popmq.toml").write_text("prot = 1\nsomething = 2\n")
    assert popclient.cli.main(["db", "check"]) == 2
    assert capsys.readouterr().err == (
        "popmq: prot: no such setting; did you mean port?\npopmq: something: no such setting, see popmq serve --help\n"
    )


@pytest.mark.parametrize("value", ["5h", "nonsense"])
def test_a_variable_that_is_almost_a_settings_leads_to_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    monkeypatch.setenv("POPMQ_RETENTON", value)
    monkeypatch.setenv("POPMQ_SERVICE_HOST", "10.0.0.1")  # of somebody else
    assert popclient.cli.main(["db", "check"]) == 2
    said = "popmq: POPMQ_RETENTON: no such setting; did you mean POPMQ_RETENTION? Else rename it\n"
    assert capsys.readouterr().err == said


def test_a_check_makes_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert popclient.cli.main(["db", "check", "--database-url", f"sqlite:///{tmp_path / 'popmq.db'}"]) == 1
    assert "does not exist; create it with: popmq db upgrade" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_check_that_finds_something_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "popmq.db"
    options = ["--database-url", f"sqlite:///{file}"]
    with embedded(file) as broker, Producer(broker.endpoint) as producer:
        producer.send("orders", "one espresso")

    def said() -> str:
        assert popclient.cli.main(["db", "check", *options]) == 1
        return capsys.readouterr().err

    with embedded(file):
        assert "is in use by another popmq server; stop that server" in said()
    with closing(sqlite3.connect(file)) as conn, conn:
        conn.execute("UPDATE queue SET next_offset = 0")
    sentence = said()
    assert "the database holds a message beyond its queue's end (1); keep a copy of it" in sentence
    assert "have a server repair it with popmq repair" in sentence
    with closing(sqlite3.connect(file)) as conn, conn:
        conn.execute("DELETE FROM alembic_version")
    assert f"create it with: popmq db upgrade --database-url sqlite:///{file}" in said()


def test_a_check_of_a_damaged_file_says_how_to_rescue_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "popmq.db"
    with embedded(file) as broker, Producer(broker.endpoint) as producer:
        producer.send_many([Message("orders", "x" * 5_000) for _ in range(100)])
    with closing(sqlite3.connect(file)) as conn:
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page_size,) = conn.execute("PRAGMA page_size").fetchone()
        (root,) = conn.execute("SELECT rootpage FROM sqlite_master WHERE name = 'message'").fetchone()
    with file.open("r+b") as opened:
        opened.seek((root - 1) * page_size + 12)
        opened.write(b"\xff" * 64)
    capsys.readouterr()  # the broker's log
    assert popclient.cli.main(["db", "check", "--database-url", f"sqlite:///{file}"]) == 1
    said = capsys.readouterr().err
    assert "is damaged" in said
    assert "restore a backup" in said
    assert ".recover" in said
    assert said.count("\n") == 1


def test_an_embedded_broker_is_what_its_arguments_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "popmq.toml").write_text('retention = "1s"\n')
    monkeypatch.setenv("POPMQ_MIN_INVISIBLE", "5s")
    with embedded("plain.db", manual_clock=True) as broker:
        assert (broker.app.config.retention, broker.app.config.min_invisible) == (72 * 3_600_000, 1_000)
        assert broker.database_url == "sqlite:///plain.db"
    assert (tmp_path / "plain.db").exists()


@pytest.mark.parametrize("option", ["--max-incoming", "--send-backlog", "--max-undelivered", "--max-filter-memory"])
def test_a_size_with_a_unit_is_told_the_unit(capsys: pytest.CaptureFixture[str], option: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        popclient.cli.main(["serve", option, "64MiB"])
    assert f"argument {option}: '64MiB' is not a whole number of MiB; write 64 for 64 MiB" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["permissive", "plaintext"])
@pytest.mark.parametrize("asked", [{}, {"max_connections": 500}, {"max_connections": 50}], ids=str)
async def test_connections_that_there_are_no_files_for_are_told(
    monkeypatch: pytest.MonkeyPatch, mode: Any, asked: dict[str, Any]
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (500, 500))
    app = App(GivenConfig(database_url="sqlite://", port=0, tls=mode, **asked))
    with capture_logs() as said:
        await app.start()
        await app.stop()
    lowered = [(each["asked"], each["allowed"]) for each in said if "--max-connections" in each["event"]]
    assert lowered == ([(500, 300)] if asked.get("max_connections") == 500 else [])


def test_backup_and_restore(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url, copy = f"sqlite:///{tmp_path / 'popmq.db'}", tmp_path / "copy.db"
    assert popclient.cli.main(["db", "upgrade", "--database-url", url]) == 0
    assert popclient.cli.main(["--json", "backup", str(copy), "--database-url", url]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["backup"] == str(copy)
    assert popclient.cli.main(["backup", str(copy), "--database-url", url]) == 2
    assert "confirm it with --yes" in capsys.readouterr().err
    assert popclient.cli.main(["restore", str(copy), "--database-url", url]) == 2
    contents = "0 topics, 0 messages and 0 dead letters"
    assert f"popmq.db with {contents}; it cannot be undone, confirm it with --yes" in capsys.readouterr().err
    assert popclient.cli.main(["restore", str(copy), "--database-url", url, "--yes"]) == 0
    assert popclient.cli.main(["db", "check", "--database-url", url]) == 0
