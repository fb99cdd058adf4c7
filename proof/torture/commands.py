"""The commands that run servers in their surroundings."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from proof.surroundings import POOLER, SLOW_DISK, Surroundings
from proof.torture import server_clock

DRIFT_PPM = 50  # of a clock that is one step apart; ordinary quartz is allowed 100 to 200
_STRACE = ("strace", "-D", "-f", "-qq", "--seccomp-bpf", "-o", "/dev/null")  # it hides behind the program


def command_of(around: Surroundings, number: int, clock: Path | None, *, on_postgres: bool) -> list[str]:
    """What runs the server of this number. `clock`: the file that says by how much its system clock is wrong."""
    words: list[str] = []
    if around.zone:
        words += ["env", f"TZ={around.zone}"]
    if around.flush_ms and not on_postgres:
        words += slow_calls("fsync,fdatasync", around.flush_ms)
    if clock is not None:
        drift_ppm = DRIFT_PPM * around.apart[number] if around.apart else 0
        words += [sys.executable, "-m", server_clock.__name__, str(clock), str(drift_ppm)]
    return words


def slow_postgres(by_ms: int) -> list[str]:
    """Each write takes longer: a Postgres that is only killed does not flush."""
    return slow_calls("pwrite64", by_ms)


def slow_calls(calls: str, by_ms: int) -> list[str]:
    """Each of these calls of the kernel takes longer."""
    return [*_STRACE, "-e", f"trace={calls}", "-e", f"inject={calls}:delay_enter={by_ms * 1_000}"]


@cache
def can_have() -> frozenset[str]:
    """Parts of surroundings that need a program, and that this machine can have."""
    found = {POOLER} if shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin") else set[str]()
    if shutil.which("strace"):
        tried = subprocess.run([*slow_calls("fsync", 1), "true"], capture_output=True, check=False)
        found |= set() if tried.returncode else {SLOW_DISK}
    return frozenset(found)
