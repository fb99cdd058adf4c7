"""The load's process: it reads a case per line and writes its figures per line, both as JSON.

Each server has one, so that its connections stay open; it sleeps while another server is measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.machine import pin
from benchmarks.servers import Server

END_TIMEOUT_S = 10


class Load:
    """A process that runs loads, as seen by the benchmark: `command` reads and writes lines as described above."""

    def __init__(self, name: str, command: Sequence[str], cores: set[int] | None) -> None:
        self.name = name
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        pin(self._process.pid, cores)

    def begin(self, load: str, **options: Any) -> None:
        """Start a measurement: `load` is `raw.send` or the like. Its figures come from `figures`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([load, options]) + "\n")
        self._process.stdin.flush()

    def figures(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the load on {self.name} broke off (exit code {self._process.wait()}); see above")
        figures: dict[str, Any] = json.loads(line)
        return figures

    def run(self, load: str, **options: Any) -> dict[str, Any]:
        self.begin(load, **options)
        return self.figures()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(0 if error is not None else END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class Generator(Load):
    """The load on a server of ours."""

    def __init__(self, server: Server, cores: set[int] | None) -> None:
        self.server_pid = server.pid
        program = [sys.executable, "-m", "benchmarks.generator"]
        super().__init__(server.variant.name, [*program, server.endpoint, str(server.pid), *_trust(server)], cores)


def _trust(server: Server) -> list[str]:
    return [] if server.variant.ca is None else [str(server.variant.ca)]


async def _serve(endpoint: str, server_pid: int, ca: bytes | None) -> None:
    from benchmarks.attack_load import AttackLoad
    from benchmarks.beside_load import BesideLoad
    from benchmarks.bulk_load import BulkLoad
    from benchmarks.client_load import ClientLoad
    from benchmarks.due_load import DueLoad
    from benchmarks.member_load import MemberLoad
    from benchmarks.pull_load import PullLoad
    from benchmarks.raw_load import RawLoad
    from benchmarks.sizes.idle_polls import IdlePolls

    raw = RawLoad(endpoint, server_pid, ca)
    due = DueLoad(endpoint)
    pull = PullLoad(endpoint, server_pid)
    bulk = BulkLoad(endpoint, server_pid)
    loads = {
        "raw": raw,
        "due": due,
        "pull": pull,
        "bulk": bulk,
        "client": ClientLoad(endpoint, server_pid),
        "members": MemberLoad(endpoint),
        "attack": AttackLoad(endpoint),
        "beside": BesideLoad(endpoint),
        "polls": IdlePolls(endpoint),
    }
    while line := await asyncio.to_thread(sys.stdin.readline):
        load, options = json.loads(line)
        room, _, name = load.partition(".")
        print(json.dumps(await getattr(loads[room], name)(**options)), flush=True)
    await raw.close()
    await due.close()
    await pull.close()
    await bulk.close()


def main(endpoint: str, server_pid: str, ca: str | None = None) -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(endpoint, int(server_pid), Path(ca).read_bytes() if ca else None))
    # gRPC's threads may live longer than the loop; there is nothing left to do.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
