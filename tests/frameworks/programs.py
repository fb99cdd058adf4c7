"""A program of a framework, in a process group of its own, that says what it does in a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.support.waiting import soon

PATIENCE_S = 60
UVICORN_SAYS = "Uvicorn running on "


class Program:
    """Runs a command of this environment; its output goes to `<name>.log` in `logs`. Killed at the end.

    folder: where it runs; without it, in `logs`.
    """

    def __init__(
        self, logs: Path, name: str, command: Sequence[str], endpoint: str, *, folder: Path | None = None
    ) -> None:
        self.log = logs / f"{name}.log"
        self._folder = folder or logs
        self._command = [str(Path(sys.executable).with_name(command[0])), *command[1:]]
        self._environment = {**os.environ, "ROCKETMQ_ENDPOINTS": endpoint, "PYTHONUNBUFFERED": "1"}

    def __enter__(self) -> Self:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def until_it_says(self, words: str) -> None:
        """Fails with the log if the program ends before."""

        def has_said() -> bool:
            said = self.log.read_text()
            assert words in said or self.process.poll() is None, said
            return words in said

        soon(has_said, within_s=PATIENCE_S)

    def uvicorn_address(self) -> str:
        """Where it listens, once it does."""
        self.until_it_says(UVICORN_SAYS)
        return self.log.read_text().partition(UVICORN_SAYS)[2].split()[0]

    def kill(self) -> None:
        """`kill -9`, of the program and its children."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait(PATIENCE_S)

    def terminate(self) -> None:
        """SIGTERM, to the program alone."""
        self.process.send_signal(signal.SIGTERM)

    def ended(self) -> int:
        """The exit code, once it has ended."""
        return self.process.wait(PATIENCE_S)
