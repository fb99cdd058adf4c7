"""Servers and consoles as processes of their own, which tests kill, freeze and start again where they were."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.support.server_process import POPMQ, clean_environment, serve_command


class Running:
    """A command that prints a line when it is ready."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Return at its first line."""
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=clean_environment()
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), f"{self._command} has ended"

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """`kill -9`."""
        self.send(signal.SIGKILL)
        assert self._process is not None and self._process.stdout is not None
        self._process.wait()
        self._process.stdout.close()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def running(command: Sequence[str]) -> Iterator[Running]:
    made = Running(command)
    made.start()
    try:
        yield made
    finally:
        made.kill()


@contextmanager
def server(database_url: str, *options: str) -> Iterator[tuple[Running, str, str]]:
    """A server with a console: the process, its endpoint, and the address of the console."""
    port, http = free_port(), free_port()
    command = serve_command(database_url, "--port", str(port), "--http", f"127.0.0.1:{http}", *options)
    with running(command) as made:
        yield made, f"127.0.0.1:{port}", f"http://127.0.0.1:{http}"


@contextmanager
def own_console(endpoint: str, *options: str) -> Iterator[tuple[Running, str]]:
    """`popmq console`: the process, and its address."""
    http = free_port()
    with running([POPMQ, "console", "--endpoint", endpoint, "--http", f"127.0.0.1:{http}", *options]) as made:
        yield made, f"http://127.0.0.1:{http}"
