"""The inputs that are kept: each that once failed, and one for each answer or branch that no earlier one led to.

One file per target, `proof/fuzz/corpus/<target>.txt`, with a base64 line per input. Every run begins with them, and
damages them to make others.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from proof.fuzz.target import FuzzTarget

CORPUS = Path(__file__).parent / "corpus"
INPUT_BYTES_MAX = 600
TARGET_BYTES_MAX = 30_000  # of its file, as base64


def read_corpus(name: str, folder: Path = CORPUS) -> list[bytes]:
    """The inputs of a target that are kept, one base64 line each."""
    path = folder / f"{name}.txt"
    return [base64.b64decode(line) for line in path.read_text().split()] if path.exists() else []


def write_corpus(name: str, inputs: Sequence[bytes], folder: Path = CORPUS) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.txt").write_text("".join(base64.b64encode(each).decode() + "\n" for each in inputs))


def keep(name: str, more: Iterable[bytes], folder: Path = CORPUS) -> int:
    """Add inputs to a target's, as far as they are small and there is room; the number that was added."""
    kept = read_corpus(name, folder)
    known, room = set(kept), TARGET_BYTES_MAX - sum(map(_size, kept))
    before = len(kept)
    for each in more:
        if each not in known and len(each) <= INPUT_BYTES_MAX and _size(each) <= room:
            kept.append(each)
            known.add(each)
            room -= _size(each)
    if len(kept) > before:
        write_corpus(name, kept, folder)
    return len(kept) - before


def keep_new_answers(target: FuzzTarget, seed: int, inputs: int, folder: Path = CORPUS) -> int:
    """Judge inputs, and keep the first for each answer (`target.reached`) that the kept ones do not lead to."""
    reached: set[str] = set()
    for each in read_corpus(target.name, folder):
        target.judge(each)
        reached.add(target.reached)
    more = []
    for number in range(inputs):
        data = target.draw(random.Random(f"{target.name} kept {seed} {number}"))
        target.judge(data)
        if target.reached not in reached and len(data) <= INPUT_BYTES_MAX:
            reached.add(target.reached)
            more.append(data)
    return keep(target.name, more, folder)


def _size(data: bytes) -> int:
    return len(base64.b64encode(data)) + 1
