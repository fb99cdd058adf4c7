"""The peers' processes: started with their log in their folder, waited for, and stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

START_S = 300  # on a busy machine; one that has ended is noticed at once
STOP_S = 120


@contextmanager
def process(
    command: Sequence[object], folder: Path, port: int, environment: Mapping[str, str] | None = None
) -> Iterator[int]:
    """A running server that listens on `port`; gives its pid. It and its children end at the end."""
    log = folder / f"{Path(str(command[0])).name}-{port}.log"
    with log.open("w") as said:
        started = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    try:
        _wait_for(port, started, log)
        yield started.pid
    finally:
        _end(started)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int, started: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if started.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{log.stem} did not start: {log.read_text()[-2_000:]}") from None
            time.sleep(0.05)


def _end(started: subprocess.Popen[bytes]) -> None:
    started.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        started.wait(STOP_S)
    # The rest of it, if there is some.
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()


def libraries(root: Path) -> dict[str, str]:
    """The environment in which a program of unpacked Debian packages finds its shared libraries."""
    folders = sorted({str(each.parent.absolute()) for each in (root / "usr/lib").glob("*-linux-gnu/*.so*")})
    return {} if root == Path("/") else {"LD_LIBRARY_PATH": ":".join(folders)}
