"""A server that leaks, as a process: python -m proof.soak.planted LEAKS COMMAND serve …

LEAKS: names with commas between them; empty for a sound server. Its log of changes is short and its rounds of retention
are seconds apart, so that a run of some seconds shows what one of the real server shows in minutes.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

ROUND_MS = 1_000
KEPT_BYTES = 128 << 10
CHECKPOINT_PAGES = 100

# Options of short runs, whose messages are old after two seconds.
OPTIONS = ("--http", "127.0.0.1:0", "--min-invisible", "0s", "--retention", "2s", "--idempotency-window", "2s",
           "--transaction-timeout", "1s", "--transaction-check-interval", "1s", "--transaction-checks",
           "3")  # fmt: skip

_kept: list[Any] = []


def _memory() -> None:
    _with_each_call(lambda: _kept.append(bytes([1]) * KEPT_BYTES))


def _threads() -> None:
    forever = threading.Event()
    _with_each_call(lambda: threading.Thread(target=forever.wait, daemon=True).start())


def _tasks() -> None:
    never = asyncio.Event()
    _with_each_call(lambda: _kept.append(asyncio.create_task(never.wait())))


def _files() -> None:
    """Of each connection one file stays open."""
    wire_server = _module("popserver.http2.door")

    made = wire_server.ClientConnection

    def connection(*given: Any) -> Any:
        _kept.append(os.open(os.devnull, os.O_RDONLY))
        return made(*given)

    wire_server.ClientConnection = connection


def _log() -> None:
    """The WAL is never written into the file."""
    _checkpoint_after(0)


def _rows() -> None:
    """Old messages stay."""
    flow = _module("popserver.maintenance.flow")

    async def retain(_self: Any) -> None:
        return None

    flow.Maintenance._retain = retain


# Each leak, and the measure that shows it.
LEAKS: dict[str, tuple[str, Callable[[], None]]] = {
    "memory of each call": ("memory, MiB", _memory),
    "a file of each connection": ("open files", _files),
    "a thread of each call": ("threads", _threads),
    "a task of each call": ("event loop tasks", _tasks),
    "a log that nobody empties": ("WAL, MiB", _log),
    "rows that nobody removes": ("rows of message", _rows),
}


def _hasten() -> None:
    _module("popserver.maintenance.flow").RETENTION_PERIOD_MS = ROUND_MS
    _module("popserver.maintenance.flow").KEYS_PERIOD_MS = ROUND_MS
    _checkpoint_after(CHECKPOINT_PAGES)


def _checkpoint_after(pages: int) -> None:
    database = _module("popserver.database.database")

    prepare = database.prepare_writer

    def prepared(dbapi: Any, durability: str) -> None:
        prepare(dbapi, durability)
        dbapi.execute(f"PRAGMA wal_autocheckpoint = {pages}")

    database.prepare_writer = prepared


def _with_each_call(leak: Callable[[], object]) -> None:
    calls = _module("popserver.http2.call")

    run = calls.Http2Call.run

    async def leaking(self: Any) -> None:
        leak()
        await run(self)

    calls.Http2Call.run = leaking


def _module(name: str) -> Any:
    """A module whose names are replaced, also those that it does not export."""
    return importlib.import_module(name)


def main() -> int:
    """Plant the leaks, then run the command's own program with the rest of the words."""
    leaks, command, *words = sys.argv[1:]
    _hasten()
    for name in filter(None, leaks.split(",")):
        LEAKS[name][1]()
    sys.argv = [command, *words]
    from popclient.cli import main as popmq

    return int(popmq() or 0)


if __name__ == "__main__":
    sys.exit(main())
