"""Servers of any version as processes: until their ready line, or until they end by themselves."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, NamedTuple

from proof.upgrades.versions import POPMQ, Version

_READY = re.compile(r"\bgrpc=(?P<endpoint>\S+)")
ENDS_WITHIN_S = 60.0


class Served:
    """One server process; `endpoint` after `ready`."""

    def __init__(self, version: Version, database_url: str, *, under: Sequence[str] = (POPMQ,)) -> None:
        # A file, because a pipe that nobody reads would stop the server.
        self._said: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [*under, "serve", "--database-url", database_url, *version.serve_options]
        self.process = subprocess.Popen(
            command, env=version.environment, cwd=version.folder, stdout=subprocess.PIPE, stderr=self._said, text=True
        )
        self.endpoint = self._text = ""

    def ready(self) -> str:
        """Wait for the ready line; returns the endpoint. Raises AssertionError with what a server said that ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = _READY.search(line)
        assert found, f"no ready line, but {line!r}; {self.said()}"
        self.endpoint = found["endpoint"]
        return self.endpoint

    def ended(self) -> int:
        """Wait until it ends by itself; the exit code."""
        code = self.process.wait(ENDS_WITHIN_S)
        self._close()
        return code

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.ended()

    def said(self) -> str:
        if not self._said.closed:
            self._said.seek(0)
            self._text = self._said.read()
        return self._text

    def _close(self) -> None:
        self.said()
        self._said.close()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Refusal(NamedTuple):
    """How a server ended that did not get ready."""

    code: int
    said: str

    @property
    def is_plain(self) -> bool:
        """Whether it is a sentence and an exit code, and no traceback."""
        return self.code > 0 and "Traceback" not in self.said and bool(self.said.strip())


@contextmanager
def serving(version: Version, database_url: str, *, under: Sequence[str] = (POPMQ,)) -> Iterator[Served]:
    """A server that is ready, killed (-9) afterwards."""
    server = Served(version, database_url, under=under)
    try:
        server.ready()
        yield server
    finally:
        server.kill()


def refusal(version: Version, database_url: str) -> Refusal | None:
    """How a server refuses the store; None if it gets ready (it is killed then)."""
    server = Served(version, database_url)
    try:
        server.ready()
    except AssertionError:
        return Refusal(server.ended(), server.said())
    finally:
        server.kill()
    return None


def stepping(*words: str) -> list[str]:
    """The command of a server of this checkout that kills or stops itself in the migration; see `stepping.py`."""
    return [sys.executable, "-m", "proof.upgrades.stepping", *words]
