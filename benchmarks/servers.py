"""Server processes: each variant as its own process, on the server's core."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import NamedTuple

from benchmarks.machine import pin

READY_TIMEOUT_S = 60


class Variant(NamedTuple):
    """A server to measure: `name` in the table, the URL of its database; None is the no-op server.

    `options` are those of `popmq serve`; `ca` is the file with the CA that the load trusts, if it uses TLS. `popmq` is
    an installation's command, which runs with default options; without it, this checkout's server is measured.
    """

    name: str
    database_url: str | None
    options: tuple[str, ...] = ()
    ca: Path | None = None
    popmq: Path | None = None
    environment: Mapping[str, str] = MappingProxyType({})


class Server:
    """A running server process; `ready_s` is the time from its start to its ready line."""

    def __init__(self, variant: Variant, cores: set[int] | None, log: Path) -> None:
        self.variant = variant
        begun = time.perf_counter()
        with log.open("a") as said:
            self.process = subprocess.Popen(
                _command(variant),
                stdout=subprocess.PIPE,
                stderr=said,
                env={**os.environ, **variant.environment},
                text=True,
            )
        pin(self.process.pid, cores)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self._end()
            raise RuntimeError(f"the {variant.name} server did not start: {log.read_text()[-2_000:]}")
        self.ready_s = time.perf_counter() - begun
        self.facts = json.loads(line)

    @property
    def endpoint(self) -> str:
        return str(self.facts["grpc"])

    @property
    def pid(self) -> int:
        return self.process.pid

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(READY_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def _command(variant: Variant) -> list[str]:
    if variant.database_url is None:
        return [sys.executable, "-m", "benchmarks.noop_server"]
    options = ["--database-url", variant.database_url, *variant.options]
    if variant.popmq is None:
        return [sys.executable, "-m", "benchmarks.serve", *options]
    return [str(variant.popmq), "--json", "serve", "--port", "0", *options]
