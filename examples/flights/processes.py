"""The processes of the demo: a server, consumers, and one that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

GOODBYE_S = 5.0


class ServerFailed(Exception):
    """`popmq serve` did not become ready."""


class Server(NamedTuple):
    """A server that runs. `ready` is the line that it printed; `console` is where its pages begin."""

    endpoint: str
    console: str
    ready: str
    process: subprocess.Popen[str]


@contextmanager
def server(database: Path, log: Path) -> Iterator[Server]:
    """Run `popmq serve` on free ports."""
    ports = ["--port", "0", "--http", "127.0.0.1:0"]
    options = [*ports, "--database-url", f"sqlite:///{database}", "--min-invisible", "1s"]
    with log.open("wb") as errors:
        popmq = str(Path(sys.executable).with_name("popmq"))
        process = subprocess.Popen([popmq, "serve", *options], stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline().strip()
        if not ready:
            raise ServerFailed(log.read_text().strip() or f"popmq serve ended with status {process.wait()}")
        told = dict(word.split("=", 1) for word in ready.split() if "=" in word)
        yield Server(told["grpc"], f"http://{told['http']}/", ready, process)
    finally:
        end(process)


@contextmanager
def child(module: str, *arguments: str, log: Path, home: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run `python -m module arguments` until the block ends."""
    environment = {**os.environ, **({"HOME": str(home)} if home else {})}
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        )
    try:
        yield process
    finally:
        end(process)


def kill(process: subprocess.Popen[str]) -> None:
    """`kill -9`: the client says no goodbye and gives no message back."""
    process.send_signal(signal.SIGKILL)
    process.wait()


@contextmanager
def stopped(process: subprocess.Popen[str]) -> Iterator[None]:
    """Stop the process (SIGSTOP) during the block."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def end(process: subprocess.Popen[str]) -> None:
    """Terminate the process; kill it if it does not end in time."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(GOODBYE_S)
    if process.poll() is None:
        kill(process)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
