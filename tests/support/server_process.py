"""`popmq serve` as a process of its own: started, killed, stopped, started again on the same port."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.grpc_engine import SETTING

READY_TIMEOUT_S = 60.0  # on an idle machine a start takes 0.6 s
# The command to test: this checkout's, or another one's that the environment names.
POPMQ = os.environ.get("POPMQ_TEST_COMMAND", str(Path(sys.executable).with_name("popmq")))
# In a log of words, not of JSON.
_MISTAKE = re.compile(rb"\berror\b.*(a request failed|the writer failed|an effect of a commit failed|call failed)")
# As words, or with --log-format json as JSON.
_READY = re.compile(r'\bgrpc(=|": ")(?P<endpoint>[^\s"]+).*\bready_after_ms(=|": )(?P<ready_after_ms>\d+)')


class ServerProcess:
    """One server; `start` after `kill` or `stop` brings it back where it was. `under` is a command to run it with."""

    def __init__(self, database_url: str, *options: str, under: Sequence[str] = ()) -> None:
        self._database_url = database_url
        self._options = options
        self.under = under
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._port = 0
        self.endpoint = ""
        self.ready_line = ""
        self.ready_after_ms = 0
        self.stderr = ""  # since the last start
        self.mistakes: list[str] = []  # errors in its log that no fault of a database or a client explains

    async def start(self, under: Sequence[str] | None = None) -> None:
        """Return at the ready line; a server that ends instead fails with what it said. `under`: for this start."""
        command = [
            *(self.under if under is None else under),
            *serve_command(self._database_url, "--port", str(self._port), *self._options),
        ]
        self._process = await asyncio.create_subprocess_exec(
            *command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=clean_environment() | {"PYTHONFAULTHANDLER": "1"},
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.stderr = ""
        self._reading = asyncio.create_task(self._read(self._process.stderr))
        try:
            line = (await asyncio.wait_for(self._process.stdout.readline(), READY_TIMEOUT_S)).decode()
        except TimeoutError:
            self.signal(signal.SIGABRT)  # what its threads are doing goes to stderr
            line = ""
        ready = _READY.search(line)
        if ready is None:
            await self.ended()
            raise AssertionError(f"no ready line but {line!r}; stderr: {self.stderr}")
        self.ready_line = line
        self.endpoint = ready["endpoint"]
        self.ready_after_ms = int(ready["ready_after_ms"])
        self._port = int(self.endpoint.rpartition(":")[2])

    async def kill(self) -> None:
        """`kill -9`."""
        self.signal(signal.SIGKILL)
        await self.ended()

    async def stop(self) -> int:
        """SIGTERM; returns the exit code once the process has ended."""
        self.signal(signal.SIGTERM)
        return await self.ended()

    def freeze(self) -> None:
        """SIGSTOP: it does nothing until `thaw`, and its connections stay."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def cpu_s(self) -> float:
        """The processor time it has used so far."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait until it has ended; its exit code."""
        assert self._process is not None
        assert self._reading is not None
        await self._reading
        return await self._process.wait()

    async def _read(self, stderr: asyncio.StreamReader) -> None:
        while line := await stderr.readline():
            self.stderr += line.decode()
            if _MISTAKE.search(line):
                self.mistakes.append(line.decode())


@asynccontextmanager
async def served(database_url: str, *options: str, under: Sequence[str] = ()) -> AsyncIterator[ServerProcess]:
    """A running server, killed afterwards if it still runs."""
    server = ServerProcess(database_url, *options, under=under)
    await server.start()
    try:
        yield server
    finally:
        if server.is_running:
            await server.kill()


def refused(database_url: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A server that is expected to end by itself, at once: exit code, stdout and stderr."""
    return subprocess.run(
        serve_command(database_url, "--port", "0", *options),
        capture_output=True,
        text=True,
        timeout=READY_TIMEOUT_S,
        check=False,
        env=clean_environment(),
    )


def serve_command(database_url: str, *options: str) -> list[str]:
    # Without HTTP unless a test wants it, because many servers run side by side.
    http = () if "--http" in options else ("--http", "off")
    return [POPMQ, "serve", "--host", "127.0.0.1", "--database-url", database_url, *http, *options]


def clean_environment() -> dict[str, str]:
    """Ours, without the settings of a server that may run beside the tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith("POPMQ_")} | SETTING
