"""Guided by coverage: libFuzzer, by way of atheris, changes inputs and keeps those that reach new branches of a parser.

`python -m proof.fuzz --guided` starts this module for each target, because libFuzzer ends its process. It needs the
extra `fuzz`.
"""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

from proof.fuzz.bars import bar_of
from proof.fuzz.corpus import INPUT_BYTES_MAX, keep, read_corpus
from proof.fuzz.leaks import leak_of
from proof.fuzz.run import Finding, judged
from proof.fuzz.target import grown, mutated
from proof.fuzz.targets import TARGETS

# The modules whose branches count, by target. A server's branches depend on its state too, so of its calls and of its
# HTTP port some inputs are kept that reach nothing new.
GUIDED = {
    "filters": "popserver.filters",
    "handles": "popserver.model.handles",
    "offsets": "popclient.offset_file",
    "notifications": "popserver.database.notifications",
    "authorization": "popserver.access.rules",
    "frames": "popserver.http2",
    "calls": "popserver",
    "web": "popserver.web",
}
# What libFuzzer has reached so far, on this machine: each run goes on from there. Some are kept for all (`corpus`).
REACHED = Path(__file__).parents[2] / ".fuzz"
_SEEDS = 200
_DRAWN, _DAMAGED = 0.2, 0.5


@dataclass(frozen=True)
class Guided:
    """What a guided run has done."""

    inputs: int
    kept: int
    finding: Finding | None


def run_guided(name: str, seed: int, inputs: int) -> Guided:
    """Give a target so many inputs, in a process of its own, and keep those that reached new branches."""
    with tempfile.TemporaryDirectory(prefix="popmq-fuzz-") as folder:
        seeds, crashed, slow = (Path(folder) / each for each in ("seeds", "crashed", "slow"))
        reached = REACHED / name
        for each in (reached, seeds, crashed, slow):
            each.mkdir(parents=True, exist_ok=True)
        known = {each.name for each in reached.iterdir()}
        _write_seeds(name, seed, seeds)
        limits = (f"-runs={inputs}", f"-seed={seed % (1 << 31)}", f"-max_len={INPUT_BYTES_MAX}", "-rss_limit_mb=4096")
        places = (f"-artifact_prefix={crashed}/", str(reached), str(seeds))
        command = (sys.executable, "-m", "proof.fuzz.guided", name, str(slow), *limits, "-verbosity=0", *places)
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        found = [each.read_bytes() for each in crashed.iterdir()]
        if ended.returncode and not found:
            raise RuntimeError(f"the guided run of {name} ends with {ended.returncode}: {ended.stderr[-2_000:]}")
        new = sorted((each.read_bytes() for each in reached.iterdir() if each.name not in known), key=len)
        finding = _crash(name, found[0], ended.stderr) if found else _slow_or_leak(name, _read_all(slow), new)
        return Guided(inputs, 0 if finding else keep(name, new), finding)


def _read_all(folder: Path) -> list[bytes]:
    return [each.read_bytes() for each in sorted(folder.iterdir())]


def _write_seeds(name: str, seed: int, folder: Path) -> None:
    target = TARGETS[name]()
    drawn = [target.draw(random.Random(f"{name} guided {seed} {number}")) for number in range(_SEEDS)]
    for number, each in enumerate([*read_corpus(name), *drawn]):
        (folder / str(number)).write_bytes(each)


def _crash(name: str, data: bytes, said: str) -> Finding:
    with closing(TARGETS[name]()) as target:
        return Finding(name, data, judged(target, data) or f"not for this input alone:\n{said[-4_000:]}")


def _slow_or_leak(name: str, slow: Sequence[bytes], new: Sequence[bytes]) -> Finding | None:
    """Whether inputs over their bar are so without counters too, and what new ones do if they grow, and if repeated."""
    with closing(TARGETS[name]()) as target:
        for data in (*slow, *(grown(each, random.Random(each)) for each in new)):
            if (what := judged(target, data)) is not None:
                return Finding(name, data, what)
    with closing(TARGETS[name]()) as target:
        leak = leak_of(target, new[: target.leaked]) if new else None
    return leak and Finding(name, *leak)


def main(words: list[str]) -> None:
    """In the process of a run: a target's name, a folder for slow inputs, then libFuzzer's options."""
    import atheris

    name, slow = words[1], Path(words[2])
    target = TARGETS[name]()

    def change(data: bytes, longest: int, seed: int) -> bytes:
        dice = random.Random(seed)
        match dice.random():
            case share if share < _DRAWN:
                return target.draw(dice)[:longest]
            case share if share < _DAMAGED:
                return mutated(data, dice)[:longest]
        return bytes(atheris.Mutate(data, longest))

    def judge(data: bytes) -> None:
        started = time.process_time()
        target.judge(data)
        if time.process_time() - started > bar_of(target, data):
            (slow / f"{zlib.crc32(data):08x}").write_bytes(data)

    _instrument(GUIDED[name])
    atheris.Setup([words[0], *words[3:]], judge, custom_mutator=change)
    atheris.Fuzz()


def _instrument(modules: str) -> None:
    """Put counters into the branches of every function of these modules, which are loaded already."""
    import atheris

    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__module__ and each.__module__.startswith(modules):
            atheris.instrument_func(each)


if __name__ == "__main__":
    main(sys.argv)
