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
import traceback
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

from proof.fuzz.bars import bar_of
from proof.fuzz.corpus import INPUT_BYTES_MAX, keep, read_corpus
from proof.fuzz.leaks import leak_of
from proof.fuzz.run import Finding, judged
from proof.fuzz.target import FuzzTarget, grown, mutated
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
        seeds, crashed, slow, broken = (Path(folder) / each for each in ("seeds", "crashed", "slow", "broken"))
        reached = REACHED / name
        for each in (reached, seeds, crashed, slow, broken):
            each.mkdir(parents=True, exist_ok=True)
        known = {each.name for each in reached.iterdir()}
        _write_seeds(name, seed, seeds)
        limits = (
            f"-runs={inputs}",
            f"-seed={seed % (1 << 31)}",
            f"-max_len={INPUT_BYTES_MAX}",
            "-rss_limit_mb=4096",
            "-verbosity=0",
        )
        places = (f"-artifact_prefix={crashed}/", str(reached), str(seeds))
        command = (sys.executable, "-m", "proof.fuzz.guided", name, str(slow), str(broken), *limits, *places)
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        findings = [Finding.read(each) for each in broken.iterdir()]
        findings += [Finding(name, each.read_bytes(), ended.stderr[-4_000:]) for each in crashed.iterdir()]
        if ended.returncode and not findings:
            raise RuntimeError(f"the guided run of {name} ends with {ended.returncode}: {ended.stderr[-2_000:]}")
        new = sorted((each.read_bytes() for each in reached.iterdir() if each.name not in known), key=len)
        finding = _alone(findings[0]) if findings else _slow_or_leak(name, _read_all(slow), new)
        return Guided(inputs, 0 if finding else keep(name, new), finding)


def _read_all(folder: Path) -> list[bytes]:
    return [each.read_bytes() for each in sorted(folder.iterdir())]


def _write_seeds(name: str, seed: int, folder: Path) -> None:
    target = TARGETS[name]()
    drawn = [target.draw(random.Random(f"{name} guided {seed} {number}")) for number in range(_SEEDS)]
    for number, each in enumerate([*read_corpus(name), *drawn]):
        (folder / str(number)).write_bytes(each)


def _alone(found: Finding) -> Finding:
    """The finding without the inputs before it, if it does not need them."""
    with closing(TARGETS[found.target]()) as target:
        what = judged(target, found.data)
    return found if what is None else Finding(found.target, found.data, what)


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
    """In the process of a run: a target's name, folders for slow inputs and for a finding, then libFuzzer's options."""
    import atheris

    name, slow, broken = words[1], Path(words[2]), Path(words[3])
    target = TARGETS[name]()

    def change(data: bytes, longest: int, seed: int) -> bytes:
        dice = random.Random(seed)
        match dice.random():
            case share if share < _DRAWN:
                return target.draw(dice)[:longest]
            case share if share < _DAMAGED:
                return mutated(data, dice)[:longest]
        return bytes(atheris.Mutate(data, longest))

    _instrument(GUIDED[name])
    atheris.Setup([words[0], *words[4:]], judging(target, slow, broken), custom_mutator=change)
    atheris.Fuzz()


def judging(target: FuzzTarget, slow: Path, broken: Path) -> Callable[[bytes], None]:
    """A function that judges an input. It writes slow inputs into the one folder, and a finding into the other, with
    the inputs that the target's state had met."""
    before: list[bytes] = []

    def judge(data: bytes) -> None:
        started = time.process_time()
        try:
            target.judge(data)
        except Exception:
            Finding(target.name, data, traceback.format_exc(limit=-6), before).write(broken)
            raise
        if time.process_time() - started > bar_of(target, data):
            (slow / f"{zlib.crc32(data):08x}").write_bytes(data)
        if target.age <= 1:
            before.clear()
        if target.age:
            before.append(data)

    return judge


def _instrument(modules: str) -> None:
    """Put counters into the branches of every function of these modules, which are loaded already."""
    import atheris

    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__module__ and each.__module__.startswith(modules):
            atheris.instrument_func(each)


if __name__ == "__main__":
    main(sys.argv)
