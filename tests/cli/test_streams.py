"""Standard streams that are closed, full, or read by no one, of commands and of a server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import popserver
from popclient import ClientConfig, Producer, SimpleConsumer

POPMQ = [sys.executable, "-c", "import sys; from popclient.cli import main; sys.exit(main())"]
CLOSED, REFUSED, USAGE = 141, 1, 2
WORDS = (
    ["topic", "list"],
    ["topic", "list", "--json"],
    ["message", "find", "--topic", "t"],
    ["--help"],
    ["--version"],
)


@pytest.fixture(scope="module")
def broker() -> Iterator[popserver.EmbeddedBroker]:
    with popserver.embedded() as running, Producer(running.endpoint) as producer:
        for number in range(50):
            producer.send("t", f"{number}", keys=f"Zoë中-{number}")
        yield running


def popmq(redirections: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs it in a shell, with what the shell does to its streams."""
    command = ["sh", "-c", f'"$@" {redirections}', "sh", *POPMQ, *words]
    environment = os.environ | env
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


@pytest.mark.parametrize(
    ("redirection", "sentence"),
    [
        (">&-", "popmq: the output cannot be written: Bad file descriptor\n"),
        (">/dev/full", "popmq: the output cannot be written: No space left on device\n"),
        (">/dev/full 2>/dev/full", ""),
        (">&- 2>&-", ""),
    ],
)
@pytest.mark.parametrize("words", WORDS)
def test_output_that_cannot_be_written(
    broker: popserver.EmbeddedBroker, words: list[str], redirection: str, sentence: str
) -> None:
    ended = popmq(redirection, *(words if words[0].startswith("--") else ["--endpoint", broker.endpoint, *words]))
    assert (ended.returncode, ended.stdout, ended.stderr) == (REFUSED, "", sentence)


def test_a_reader_that_wants_no_more(broker: popserver.EmbeddedBroker) -> None:
    for words in (["--endpoint", broker.endpoint, "message", "find", "--topic", "t"], ["--help"]):
        reader, writer = os.pipe()
        os.close(reader)
        ended = subprocess.run([*POPMQ, *words], stdout=writer, stderr=subprocess.PIPE, timeout=120, check=False)
        os.close(writer)
        assert (ended.returncode, ended.stderr) == (CLOSED, b"")


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_errors_that_cannot_be_written_are_not_written_elsewhere(redirection: str) -> None:
    ended = popmq(redirection, "topic", "nonsense")
    assert (ended.returncode, ended.stdout, ended.stderr) == (USAGE, "", "")


def test_a_terminal_without_the_characters(broker: popserver.EmbeddedBroker) -> None:
    ended = popmq("", "--endpoint", broker.endpoint, "message", "find", "--topic", "t", PYTHONIOENCODING="ascii")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert r"Zo\xeb\u4e2d-" in ended.stdout


def test_a_question_without_an_input(broker: popserver.EmbeddedBroker) -> None:
    ended = popmq("<&-", "--endpoint", broker.endpoint, "topic", "delete", "t")
    assert ended.returncode == USAGE
    assert "--yes" in ended.stderr
    assert "Traceback" not in ended.stderr


def served(port: int, folder: Path, redirections: str, stderr: int) -> subprocess.Popen[bytes]:
    words = ["serve", "--port", str(port), "--http", "off", "--log-level", "debug", "--min-invisible", "1s"]
    command = [
        "sh",
        "-c",
        f'exec "$@" {redirections}',
        "sh",
        *POPMQ,
        *words,
        "--database-url",
        f"sqlite:///{folder}/db",
    ]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, cwd=folder)


@pytest.mark.parametrize("redirections", ["", ">/dev/full 2>/dev/full", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_server_whose_log_cannot_be_written(tmp_path: Path, redirections: str) -> None:
    """Without redirections its log goes into a pipe that is full: nobody reads it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    unread, log = os.pipe()
    os.set_blocking(log, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(log, b"x" * 4_096)
    os.set_blocking(log, True)
    server = served(port, tmp_path, redirections, log)
    try:
        config = ClientConfig(f"127.0.0.1:{port}", request_timeout=60, wait_for_server=120)
        for _ in range(5):  # each client that comes and goes is told in the log
            with Producer(config) as producer, SimpleConsumer(config, "g", "t") as consumer:
                producer.send("t", "x")
                [message] = consumer.receive(await_duration=30)
                consumer.ack(message)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()
        os.close(unread)
        os.close(log)
