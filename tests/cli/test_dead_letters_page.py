"""What docs/dead-letters.md tells a user to type works."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from popclient.admin import Admin
from tests.support.shell import Shell

PAGE = (Path(__file__).parents[2] / "docs" / "dead-letters.md").read_text()
PLAN_OF_THE_PAGE = "20261120T140211-9f3a5c"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def commands() -> list[list[str]]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines]


@pytest.fixture
def dead(shell: Shell) -> None:
    """Three dead letters of the group `arrivals`."""
    shell.ok("topic", "create", "flights", "--queues", "1")
    shell.ok("group", "create", "arrivals", "--max-attempts", "1")
    for body, carrier in (("delay 5", "UA"), ("delay NaN", "UA"), ("delay NaN", "AA")):
        shell.ok("message", "send", "flights", body, "--tag", carrier)
    shell.ok("message", "receive", "flights", "--group", "arrivals")
    shell.broker.clock.advance("31s")


@pytest.mark.usefixtures("dead")
def test_every_command(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for code in blocks("python")[:2]:
        name = re.search(r"# (\w+\.py)", code)
        assert name is not None
        (tmp_path / name[1]).write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    to_run, to_cancel = (
        shell.json("dlq", "redrive", "--group", "arrivals", "--where", "TAGS = 'UA'", "--dry-run")["plan_id"]
        for _ in range(2)
    )
    [first, *_] = shell.json("dlq", "list", "--group", "arrivals")
    given = commands()
    assert len(given) > 12
    for words in given:
        own = {PLAN_OF_THE_PAGE: to_cancel if "cancel" in words else to_run, "4711": str(first["id"])}
        said = shell(*(own.get(word, word) for word in words[1:]))
        assert said.status == 0, (words, said)
    for module in ("sorting", "fixes"):
        sys.modules.pop(module, None)


@pytest.mark.usefixtures("dead")
def test_from_python(shell: Shell, tmp_path: Path) -> None:
    script = tmp_path / "sent_back.py"
    script.write_text(blocks("python")[2].replace("127.0.0.1:8081", shell.endpoint))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["2", "2 of 2"]
    assert [line.split()[1:] for line in lines[2:]] == [["REDRIVEN", "READY"]] * 2
    with Admin(shell.endpoint) as admin:
        assert list(admin.dead_letters("arrivals")) == []
