"""`popmq serve --workers N` as a test runs it: one supervisor, and the workers that it started."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.postgres import children
from tests.support.server_process import ServerProcess
from tests.support.waiting import eventually

WITHIN_S = 60.0
WORKER = b"popserver.serve.worker"


class Workers(ServerProcess):
    """A supervisor with its workers."""

    def __init__(self, database_url: str, count: int, *options: str) -> None:
        """`count` 0: as many as popmq.toml says."""
        number = ("--workers", str(count)) if count else ()
        super().__init__(database_url, *number, "--log-format", "json", *options)

    @property
    def facts(self) -> dict[str, Any]:
        """The ready line."""
        facts: dict[str, Any] = json.loads(self.ready_line)
        return facts

    def running(self) -> dict[int, int]:
        """The workers that run: their numbers by process id."""
        found = {}
        for pid in children(self.pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:  # it has ended meanwhile
                continue
            if WORKER in words:
                found[pid] = int(words[words.index(WORKER) + 1])
        return found

    def lines(self, event: str) -> list[dict[str, Any]]:
        """What the log says of this."""
        documents = [json.loads(line) for line in self.stderr.splitlines() if line.startswith("{")]
        return [each for each in documents if each.get("event") == event]

    async def logged(self, event: str, count: int = 1) -> dict[str, Any]:
        """Wait until the log has so many lines of this; the last one."""

        async def is_there() -> bool:
            assert self.is_running, self.stderr
            return len(self.lines(event)) >= count

        await eventually(is_there, f"{count} times '{event}' in the log", within_s=WITHIN_S)
        return self.lines(event)[-1]

    async def reload(self) -> None:
        """Replace all workers; returns when it is done."""
        count = len(self.lines("reloaded"))
        self.signal(signal.SIGHUP)
        await self.logged("reloaded", count + 1)

    def kill_worker(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)


@asynccontextmanager
async def workers(database_url: str, count: int = 2, *options: str) -> AsyncIterator[Workers]:
    """Running workers, killed afterwards if they still run."""
    server = Workers(database_url, count, *options)
    await server.start()
    try:
        yield server
    finally:
        if server.is_running:
            await server.kill()
