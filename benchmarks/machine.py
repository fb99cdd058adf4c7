"""The machine: what it is, how fast its disk obeys, how much a process has used of it."""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import grpc

from popserver.database.database import sqlite_module

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_SYNCS = 300


class Cores:
    """Which core the server has, and which one the load: apart, so that neither takes the other's time.

    With one core, or where pinning is not offered (macOS), everything runs where the system puts it.
    """

    def __init__(self, *, pin: bool = True) -> None:
        usable = sorted(os.sched_getaffinity(0)) if pin and hasattr(os, "sched_getaffinity") else []
        self.server = {usable[0]} if len(usable) > 1 else None
        self.load = {usable[1]} if len(usable) > 1 else None

    def __str__(self) -> str:
        if self.server is None or self.load is None:
            return "not pinned"
        return f"server on core {min(self.server)}, load on core {min(self.load)}; Postgres itself is not pinned"


def pin(pid: int, cores: set[int] | None) -> None:
    """Pin a process that has just begun: its threads and children to come are pinned with it.

    Not from inside of it before it runs its program: that would be a fork beside the threads of gRPC, which may abort.
    """
    if cores is not None:
        os.sched_setaffinity(pid, cores)


def environment(folder: Path, cores: Cores) -> dict[str, Any]:
    """Facts without which no figure can be judged."""
    return {
        "cores": os.cpu_count(),
        "pinning": str(cores),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "grpcio": grpc.__version__,
        "uvloop": _version("uvloop"),
        "sqlite": sqlite_module(own_process=True).sqlite_version,
        "fsync_us": fsync_us(folder),
    }


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def fsync_us(folder: Path) -> dict[str, float]:
    """Median and 99th percentile of fdatasync after a write of one page, on the disk the databases lie on."""
    path = folder / "fsync-probe"
    taken = []
    with path.open("wb", buffering=0) as file:
        for _ in range(_SYNCS):
            file.write(bytes(4_096))
            begun = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - begun) * 1e6)
    path.unlink()
    return {"p50": round(statistics.median(taken), 1), "p99": round(sorted(taken)[int(_SYNCS * 0.99)], 1)}


def cpu_seconds(pid: int) -> float:
    """CPU time a process has used so far, user and system, all threads; 0 where /proc does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def family_cpu_seconds(pid: int | None = None) -> float:
    """CPU time of a process (None: this one) with all that it and they have made, those that have ended too."""
    found, waiting = 0.0, [os.getpid() if pid is None else pid]
    while waiting:
        each = waiting.pop()
        waiting += children_of(each)
        with contextlib.suppress(OSError):  # it has ended meanwhile, and counts with its parent's
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            found += sum(map(int, fields[11:15])) * _TICK_S
    return found


def parent_of(pid: int) -> int:
    """The process that made this one; 0 where /proc does not say."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def children_of(pid: int) -> list[int]:
    """The processes that this one has made, as far as they live."""
    everybody = (int(each.parent.name) for each in Path("/proc").glob("[0-9]*/stat"))
    return [each for each in everybody if parent_of(each) == pid]


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None
