"""`popmq health`: the answer, its reasons and the exit code."""

from __future__ import annotations

import pytest

from tests.support.failing_database import hanging_database
from tests.support.shell import Shell


def test_a_server_that_works(shell: Shell) -> None:
    lines = shell.ok("health").lines
    assert lines[0] == "ready"
    assert any(line.split()[:2] == ["yes", "database"] for line in lines)
    document = shell.json("health")
    assert (document["live"], document["ready"], document["warnings"]) == (True, True, [])


def test_a_server_whose_database_does_not_answer(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    with hanging_database(monkeypatch):
        said = shell("health")
        assert (said.status, said.lines[0]) == (1, "not ready")
        assert "has not answered for" in said.out
        unready = shell("--json", "health")
        assert (unready.status, unready.document["ready"]) == (1, False)
