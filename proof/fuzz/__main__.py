"""python -m proof.fuzz: random and damaged inputs for the parsers; see `--help`."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from proof.fuzz.corpus import keep_new_answers
from proof.fuzz.guided import GUIDED, run_guided
from proof.fuzz.leaks import LEFT, leak_of
from proof.fuzz.run import Finding, leak_in, run_inputs
from proof.fuzz.targets import SHARES, TARGETS
from proof.totals import add_totals, read_totals

HARNESS = "fuzz"
PART = 20_000  # inputs between two additions to the totals


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m proof.fuzz",
        description="Give random and damaged inputs to the parsers of what clients, users and other servers send. The"
        " counts are added to proof/totals/fuzz.json after every 20,000 inputs, so a run can end at any time;"
        " --first goes on with the inputs after those.",
    )
    parser.add_argument("--inputs", type=int, default=400_000, help="of all targets together (400,000)")
    parser.add_argument("--target", choices=sorted(TARGETS), help="only this one")
    parser.add_argument("--seed", type=int, help="inputs depend on it and on their number (random)")
    parser.add_argument("--first", type=int, default=0, help="the number of each target's first input (0)")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="judge the input in the file of a finding")
    parser.add_argument("--keep", action="store_true", help="keep inputs with new answers in proof/fuzz/corpus")
    parser.add_argument("--guided", action="store_true", help="by the coverage of parsers; keeps new inputs")
    parser.add_argument("--until", type=int, help="go on until the totals have so many inputs")
    parser.add_argument("--no-totals", action="store_true", help="leave proof/totals alone")
    return parser.parse_args(words)


def replay(path: Path) -> int:
    """Exit code 1 if the product still breaks a rule for this input."""
    found = Finding.read(path)
    target = TARGETS[found.target]()
    try:
        what = found.judged_again(target)
        leak = leak_of(target, [found.data] * target.leaked) if LEFT in found.what else None
    finally:
        target.close()
    print(what or (leak and leak[1]) or "no rule is broken for this input")
    return 1 if what or leak else 0


def run_target(name: str, options: argparse.Namespace, seed: int, inputs: int) -> bool:
    target = TARGETS[name]()
    try:
        for first in range(options.first, options.first + inputs, PART):
            counts = run_inputs(target, seed, min(PART, options.first + inputs - first), first)
            if not options.no_totals:
                sums = {"inputs": counts.inputs, f"inputs_{name}": counts.inputs, "comparisons": counts.comparisons}
                add_totals(HARNESS, {**sums, "violations": int(counts.finding is not None)})
            if counts.finding is not None:
                _tell(f"{name}, input {first + counts.inputs - 1} of seed {seed}", counts.finding)
                return False
    finally:
        target.close()
    return has_no_leak(name, options, seed) and _say(f"{name}: {inputs} inputs from {options.first} of seed {seed}")


def has_no_leak(name: str, options: argparse.Namespace, seed: int) -> bool:
    with closing(TARGETS[name]()) as target:
        leak = leak_in(target, seed, options.first)
    if leak is None:
        return True
    if not options.no_totals:
        add_totals(HARNESS, {"violations": 1})
    _tell(f"{name}, inputs from {options.first} of seed {seed}", leak)
    return False


def _tell(where: str, finding: Finding) -> None:
    path = finding.write(Path(tempfile.gettempdir()) / "popmq-fuzz")
    print(f"{where}: {finding.what}\nRepeat it: python -m proof.fuzz --replay {path}", flush=True)


def _say(sentence: str) -> bool:
    print(sentence, flush=True)
    return True


def guide(name: str, options: argparse.Namespace, seed: int, inputs: int) -> bool:
    done = run_guided(name, seed, inputs)
    if done.finding is not None:
        _tell(f"{name}, guided", done.finding)
    else:
        print(f"{name}: {inputs} guided inputs of seed {seed}; {done.kept} are kept", flush=True)
    if not options.no_totals:
        counted = {"inputs": inputs, f"inputs_{name}": inputs, "guided": inputs} if done.finding is None else {}
        add_totals(HARNESS, {**counted, "violations": int(done.finding is not None)})
    return done.finding is None


def keep_answers(names: Iterable[str], seed: int, inputs: int) -> int:
    for name in names:
        with closing(TARGETS[name]()) as target:
            print(f"{name}: {keep_new_answers(target, seed, inputs)} inputs are kept", flush=True)
    return 0


def main(words: Sequence[str] | None = None) -> int:
    options = arguments(words)
    if options.replay is not None:
        return replay(options.replay)
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    if options.until is not None:
        options.inputs = max(0, options.until - read_totals(HARNESS).get("inputs", 0))
    shares = {options.target: 100} if options.target else SHARES
    if options.guided:
        names = [options.target] if options.target else list(GUIDED)
        guided = [guide(name, options, seed, options.inputs // len(names)) for name in names]
        return 0 if all(guided) else 1
    if options.keep:
        return keep_answers(shares, seed, options.inputs)
    fine = [run_target(name, options, seed, options.inputs * share // 100) for name, share in shares.items()]
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
