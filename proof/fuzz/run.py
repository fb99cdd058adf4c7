"""Runs inputs against a target: by a seed, so that each is found again, and from the corpus."""

from __future__ import annotations

import base64
import gc
import json
import random
import resource
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from proof.fuzz.bars import judge_in_time
from proof.fuzz.corpus import read_corpus
from proof.fuzz.leaks import leak_of
from proof.fuzz.target import FuzzTarget, TooSlow, grown, mutated

GROWTH_MIB_MAX = 64
_WARM_UP = 2_000  # inputs before memory is measured: caches are full then
_FROM_CORPUS = 0.15
_GROWN_EACH = 100  # one of so many inputs is long
_STATM = Path("/proc/self/statm")  # pages, of Linux


@dataclass(frozen=True)
class Finding:
    """An input that broke a rule. `before`: the inputs that a target's state has to have met first."""

    target: str
    data: bytes
    what: str
    before: Sequence[bytes] = ()

    def write(self, folder: Path) -> Path:
        """A file for `--replay`."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.target}-{random.Random(self.data).getrandbits(32):08x}.json"
        inputs = [base64.b64encode(each).decode() for each in (self.data, *self.before)]
        content = {"target": self.target, "input": inputs[0], "what": self.what, "before": inputs[1:]}
        path.write_text(json.dumps(content, indent=2) + "\n")
        return path

    @classmethod
    def read(cls, path: Path) -> Finding:
        """What `write` has written."""
        found = json.loads(path.read_text())
        data, *before = (base64.b64decode(each) for each in (found["input"], *found["before"]))
        return cls(found["target"], data, found["what"], before)

    def judged_again(self, target: FuzzTarget) -> str | None:
        """What is wrong now; None if nothing is. `target`: a new one."""
        for each in self.before:
            judged(target, each)
        return judged(target, self.data)


@dataclass
class FuzzCounts:
    """What a run has done."""

    inputs: int = 0
    comparisons: int = 0
    finding: Finding | None = None


def input_of(target: FuzzTarget, corpus: Sequence[bytes], seed: int, number: int) -> bytes:
    """Input `number` of a seed; it depends on nothing else but the corpus."""
    if number < len(corpus):
        return corpus[number]
    dice = random.Random(f"{target.name} {seed} {number}")
    data = _a_short_input(target, corpus, dice)
    return grown(data, dice) if number % _GROWN_EACH == 0 else data


def _a_short_input(target: FuzzTarget, corpus: Sequence[bytes], dice: random.Random) -> bytes:
    if corpus and dice.random() < _FROM_CORPUS:
        return mutated(dice.choice(corpus), dice)
    drawn = target.draw(dice)
    return mutated(drawn, dice) if dice.random() < 0.1 else drawn


def run_inputs(target: FuzzTarget, seed: int, inputs: int, first: int = 0) -> FuzzCounts:
    """Judge inputs `first` to `first + inputs - 1` of a seed, up to the first finding."""
    corpus = read_corpus(target.name)
    counts = FuzzCounts()
    before_mib = 0.0
    for number in range(first, first + inputs):
        if counts.inputs == _WARM_UP:
            before_mib = _resident_mib()
        data = input_of(target, corpus, seed, number)
        counts.inputs += 1
        what = judged(target, data, counts)
        if what is not None:
            # Less of an input that takes long takes less long: its size is what matters.
            found = data if TooSlow.__name__ in what else smaller(target, data, target.tries)
            counts.finding = Finding(target.name, found, what)
            return counts
    more_mib = _resident_mib() - before_mib
    if before_mib and more_mib > GROWTH_MIB_MAX:
        counts.finding = Finding(target.name, b"", f"the process has grown by {more_mib:.0f} MiB in {inputs} inputs")
    return counts


def leak_in(target: FuzzTarget, seed: int, first: int = 0) -> Finding | None:
    """Whether inputs from `first` on leave something in memory."""
    corpus = read_corpus(target.name)
    inputs = [input_of(target, corpus, seed, number) for number in range(first, first + target.leaked)]
    found = leak_of(target, inputs)
    return found and Finding(target.name, *found)


def judged(target: FuzzTarget, data: bytes, counts: FuzzCounts | None = None) -> str | None:
    """What is wrong with the product's answer to an input; None if nothing is."""
    try:
        comparisons = judge_in_time(target, data)
    except Exception:  # noqa: BLE001 - whatever is raised is the finding
        return traceback.format_exc(limit=-6)
    if counts is not None:
        counts.comparisons += comparisons
    return None


def smaller(target: FuzzTarget, data: bytes, tries: int) -> bytes:
    """The input without the parts that the finding does not need."""
    size = max(1, len(data) // 2)
    while tries > 0:
        at = 0
        while at < len(data) and tries > 0:
            tries -= 1
            without = data[:at] + data[at + size :]
            if judged(target, without) is not None:
                data = without
            else:
                at += size
        if size == 1:
            break
        size //= 2
    return data


def _resident_mib() -> float:
    """The process's memory; its highest so far where the system does not say what it has now."""
    gc.collect()
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * resource.getpagesize() / (1 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024
