"""Facts about the machine: its system, the speed of its disk, the CPU time of processes."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import signal
import statistics
import time
from pathlib import Path
from typing import Any

import grpc

from popserver.sqlite.library import sqlite_module

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_SYNCS = 300


class Cores:
    """Separate cores for the server and the load, so that neither takes the other's time.

    With one core, or without pinning (macOS), the system chooses.
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
    """Pin a process that has just started; its later threads and children are pinned too.

    This is not done in the child before it runs its program: a fork while gRPC's threads run may abort.
    """
    if cores is not None:
        os.sched_setaffinity(pid, cores)


def environment(folder: Path, cores: Cores) -> dict[str, Any]:
    """The facts about the machine and the software that belong to the figures."""
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
    """Median and 99th percentile of fdatasync after a write of one page, in µs, on the disk of the databases."""
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
    """CPU seconds that a process has used so far, user and system, all threads; 0 without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def family_cpu_seconds(*pids: int) -> float:
    """CPU seconds of these processes (none: this one) and all their descendants, including those that have ended."""
    found = 0.0
    for each in family_of(*(pids or (os.getpid(),))):
        with contextlib.suppress(OSError):  # it has ended meanwhile, and its time counts for its parent
            found += _with_ended_children_s(each)
    return found


def _with_ended_children_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) * _TICK_S


class FamilyCpu:
    """The CPU time of processes and all their descendants from now on, also of those that begin or end meanwhile.

    A process that ignores its children's ends, as PySpark's daemon does, does not inherit their time: then the time of
    a worker that ends is lost, which must not count as negative.
    """

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self._before = self._now()

    def seconds(self) -> float:
        now = self._now()
        found = sum(seconds for seconds, _ in now.values())
        return found - sum(was for pid, (was, is_inherited) in self._before.items() if pid in now or is_inherited)

    def _now(self) -> dict[int, tuple[float, bool]]:
        """By process: its seconds, and whether its parent inherits them."""
        found = {}
        for each in family_of(*self._pids):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                found[each] = _with_ended_children_s(each), not _ignores_ends(parent_of(each))
        return found


def _ignores_ends(pid: int) -> bool:
    ignored = re.search(r"^SigIgn:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return ignored is not None and bool(int(ignored[1], 16) >> (signal.SIGCHLD - 1) & 1)


def family_memory_bytes(*pids: int) -> int:
    """Resident memory of these processes and all their descendants; what several of them share counts once (PSS)."""
    found = 0
    for each in family_of(*pids):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
            found += next(int(line.split()[1]) * 1_024 for line in lines if line.startswith("Pss:"))
    return found


def family_of(*pids: int) -> list[int]:
    """These processes and all their running descendants."""
    children: dict[int, list[int]] = {}
    for pid in (int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat")):
        children.setdefault(parent_of(pid), []).append(pid)
    found, waiting = set[int](), list(pids)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return sorted(found)


def parent_of(pid: int) -> int:
    """The parent of a process; 0 without /proc."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None
