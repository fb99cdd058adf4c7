"""The command line as a test types it: in this process, or as the installed command."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import popclient.cli
from popserver import EmbeddedBroker

# What the server says in its log, which is in this process too.
_LOGGED = re.compile(r"^\d{4}-\d\d-\d\dT[0-9:.]+Z \[\w+ *\] .*\n", re.MULTILINE)
POPMQ = str(Path(sys.executable).with_name("popmq"))


class Said(NamedTuple):
    """What one command left behind."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def document(self) -> Any:
        """Standard output, which must be one JSON document."""
        return json.loads(self.out)


class Shell:
    """Runs commands against one server."""

    def __init__(
        self,
        endpoint: str,
        capture: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        broker: EmbeddedBroker,
    ) -> None:
        self.endpoint = endpoint
        self.broker = broker
        self._capture = capture
        self._monkeypatch = monkeypatch

    def __call__(self, *words: str, stdin: bytes = b"", terminal: bool = False) -> Said:
        """One command; usage errors end it as they end a process."""
        self._capture.readouterr()
        self._monkeypatch.setattr(sys, "stdin", _Keyboard(stdin, terminal=terminal))
        try:
            status = popclient.cli.main(["--endpoint", self.endpoint, *words])
        except SystemExit as end:
            status = int(end.code or 0)
        out, err = self._capture.readouterr()
        return Said(status, out, _LOGGED.sub("", err))

    def ok(self, *words: str, stdin: bytes = b"") -> Said:
        """One command that must succeed."""
        said = self(*words, stdin=stdin)
        assert (said.status, said.err) == (0, ""), said
        return said

    def json(self, *words: str, stdin: bytes = b"") -> Any:
        """The document of one command that must succeed."""
        return self.ok("--json", *words, stdin=stdin).document


def installed(*words: str, **environment: str) -> Said:
    """The installed `popmq`, as a process."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("POPMQ_", "ROCKETMQ_"))}
    done = subprocess.run(
        [POPMQ, *words], capture_output=True, text=True, timeout=120, check=False, env={**inherited, **environment}
    )
    return Said(done.returncode, done.stdout, done.stderr)


class _Keyboard(io.TextIOWrapper):
    def __init__(self, typed: bytes, *, terminal: bool) -> None:
        super().__init__(io.BytesIO(typed), encoding="utf-8")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal
