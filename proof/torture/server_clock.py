"""A server with a clock of its own: python -m proof.torture.server_clock FILE PPM COMMAND …

FILE has 8 bytes, a number: by how many milliseconds the machine's clock is wrong, which may change at any time. Real
time runs faster by PPM parts of a million.
"""

from __future__ import annotations

import mmap
import runpy
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from popserver.engine import clock

_NUMBER = struct.Struct("d")


def set_clock(file: Path, wrong_ms: float) -> None:
    """The clock of each server that was started with this file is wrong by so much from now on."""
    with file.open("r+b" if file.exists() else "w+b") as opened:
        opened.write(_NUMBER.pack(wrong_ms))


def run(words: Sequence[str]) -> int:
    """Run a command in this process: `popmq serve …`, or a module of Python's."""
    if list(words[:2]) == [sys.executable, "-m"]:
        sys.argv = list(words[2:])
        runpy.run_module(words[2], run_name="__main__", alter_sys=True)
        return 0
    sys.argv = list(words)
    from popclient.cli import main as popmq

    return int(popmq() or 0)


def _elapsed(ppm: int) -> Callable[[], float]:
    real_s, began_s = clock.elapsed_s, clock.elapsed_s()
    return lambda: began_s + (real_s() - began_s) * (1 + ppm / 1_000_000)


def _wall(file: Path) -> Callable[[], float]:
    with file.open("rb") as opened:
        shown = mmap.mmap(opened.fileno(), _NUMBER.size, access=mmap.ACCESS_READ)
    real_ms = clock.wall_ms
    return lambda: real_ms() + float(_NUMBER.unpack_from(shown)[0])


def main() -> int:
    file, ppm, *words = sys.argv[1:]
    clock.SystemClock.__init__.__defaults__ = (_wall(Path(file)), _elapsed(int(ppm)))
    return run(words)


if __name__ == "__main__":
    sys.exit(main())
