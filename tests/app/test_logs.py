"""What a server says, and where its log goes when it runs inside another program."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog

from popserver import logs
from tests.support.server_process import clean_environment, serve_command


@pytest.fixture
def unconfigured() -> Iterator[None]:
    before = structlog.get_config() if structlog.is_configured() else None
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


@pytest.mark.usefixtures("unconfigured")
def test_a_line_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several workers write to one pipe, where only single writes stay whole."""
    written: list[str] = []
    monkeypatch.setattr(logs, "write", lambda _stream, words: written.append(words))
    logs.configure("info", "json")
    structlog.get_logger().info("worker ready", number=1)
    (line,) = written
    assert (json.loads(line)["event"], line[-1]) == ("worker ready", "\n")


@pytest.mark.usefixtures("unconfigured")
def test_it_follows_the_standard_error_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest replaces it for each test, and closes the one before."""
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    logs.configure("info", "console")
    structlog.get_logger().warning("one")
    said = first.getvalue()
    first.close()
    monkeypatch.setattr(sys, "stderr", second)
    structlog.get_logger().warning("two")
    assert "one" in said
    assert "two" in second.getvalue()


def test_with_json_each_line_is_json(sqlite_url: str) -> None:
    """Its first words and its last are no lines of the log, and are read by the same program."""
    command = serve_command(sqlite_url, "--port", "0", "--http", "off", "--log-format", "json")
    environment, pipe = clean_environment(), subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["grpc"].startswith("127.0.0.1:")
        process.terminate()
        _, log = process.communicate()
    assert [json.loads(line)["event"] for line in log.splitlines()][-1] == "draining"
