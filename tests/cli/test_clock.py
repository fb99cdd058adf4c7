"""`popmq clock confirm` and `popmq db clock`: what an operator does when the system clock jumped."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

import popclient
import popserver
from popclient.admin import Admin
from tests.support.shell import Shell

HOUR_MS = 3_600_000


def change(file: Path, statement: str) -> None:
    with sqlite3.connect(file) as conn:
        conn.execute(statement)
    conn.close()


def shell_of(broker: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(broker.endpoint, capsys, monkeypatch, broker)


def test_after_a_long_stop_the_server_waits_for_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "popmq.db"
    with popserver.embedded(file) as broker:
        shell_of(broker, capsys, monkeypatch).ok("topic", "create", "orders")
    change(file, f"UPDATE clock SET system_ms = system_ms - {100 * HOUR_MS}, server_ms = server_ms - {100 * HOUR_MS}")
    with popserver.embedded(file) as broker:
        shell = shell_of(broker, capsys, monkeypatch)
        assert "4 days 4 h ahead of its last reading" in shell.ok("status").out
        assert "the jump of 4 days 4 h is confirmed" in shell.ok("clock", "confirm").out
        assert shell.json("status")["hints"] == []
        assert shell.json("clock", "confirm") == {"sentence": "no jump of the system clock was doubted"}
    with popserver.embedded(file) as broker, Admin(broker.endpoint) as admin:
        assert admin.status().hints == (), "the word is remembered"
        assert admin.confirm_clock() == "no jump of the system clock was doubted"


def test_a_manual_clock_needs_no_word() -> None:
    with popserver.embedded(manual_clock=True) as broker, Admin(broker.endpoint) as admin:
        assert admin.confirm_clock() == "this server runs on a manual clock"


def test_a_server_time_that_is_ahead_is_set_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "popmq.db"
    with popserver.embedded(file) as broker:
        shell_of(broker, capsys, monkeypatch).ok("message", "send", "orders", "one")
    change(file, f"UPDATE message SET stored_at_ms = stored_at_ms + {2 * HOUR_MS}")
    change(file, f"UPDATE queue SET newest_stored_at_ms = newest_stored_at_ms + {2 * HOUR_MS}")
    with popserver.embedded(file) as broker:
        shell = shell_of(broker, capsys, monkeypatch)
        assert "server time is 1 h 59 min ahead of the system clock" in shell.ok("status").out.replace(
            " 2 h ", " 1 h 59 min "
        )
        busy = shell("db", "clock", "--reset", "--yes", "--database-url", f"sqlite:///{file}")
        assert (busy.status, "in use by another popmq server" in busy.err) == (1, True)
    looked = shell.json("db", "clock", "--database-url", f"sqlite:///{file}")
    assert looked["server_time_ahead"].startswith(("1 h 59 min", "2 h"))
    assert (
        shell.json("db", "clock", "--reset", "--yes", "--database-url", f"sqlite:///{file}")["messages_stored_now"]
        == "1"
    )
    assert (
        shell.json("db", "clock", "--reset", "--yes", "--database-url", f"sqlite:///{file}")["server_time_ahead"]
        == "0 ms"
    )
    with popserver.embedded(file) as broker:
        assert "server time" not in shell_of(broker, capsys, monkeypatch).ok("status").out
        with popclient.SimpleConsumer(broker.endpoint, group="till", topics="orders") as consumer:
            assert [message.body for message in consumer.receive()] == [b"one"]
