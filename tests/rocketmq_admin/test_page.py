"""What docs/rocketmq-admin.md lists and tells a reader to type."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import popserver
from popserver.services.administration import ROCKETMQ_ADMIN
from tests.http2.programs import GRPCURL, program
from tests.support.documentation_pages import ADDRESS, Block, Reader, blocks, fits

PAGE = Path(__file__).parents[2] / "docs" / "rocketmq-admin.md"
ABOUT = ("topics", "subscriptions of groups", "progress of groups", "messages", "clients", "the server")


def test_the_page_lists_all_calls() -> None:
    rows = re.findall(r"^\| ([a-z ]+) \| ([A-Z]\w+(?:, \w+)*) \|$", PAGE.read_text(), re.MULTILINE)
    listed = {about: calls.split(", ") for about, calls in rows}
    assert tuple(listed) == ABOUT
    calls = [call for several in listed.values() for call in several]
    assert sorted(calls) == sorted(each.name for each in ROCKETMQ_ADMIN.methods)


def to_run(language: str) -> list[Block]:
    """The blocks of the page that need no network."""
    return [each for each in blocks(PAGE) if each.language == language and not each.text.startswith("go install")]


@pytest.mark.timeout(900)  # it may compile grpcurl
def test_its_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(program(GRPCURL)).parent}{os.pathsep}{os.environ['PATH']}")
    (commands,) = to_run("sh")
    with popserver.embedded() as server:
        said = Reader(tmp_path, server.endpoint).type(commands.text.replace(ADDRESS, server.endpoint))
    assert said.count('"code": "OK"') == 2
    assert '"lite_expiry": "86400s"' in said
    assert '"topic_message_type": "LITE"' in said


def test_its_program(tmp_path: Path) -> None:
    (code,), (shown,) = to_run("python"), to_run("text")
    with popserver.embedded() as server:
        (tmp_path / "stub.py").write_text(code.text.replace(ADDRESS, server.endpoint))
        said = Reader(tmp_path, server.endpoint).type("python stub.py")
    assert fits(shown.text, said), said
