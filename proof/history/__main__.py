"""python -m proof.history FILE: judge a history that a run has left, without running anything."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from proof.history.lines import read_history
from proof.history.scenes import judge


def main(words: Sequence[str] | None = None) -> int:
    """0: no promise is broken; 1: some are; 2: the file cannot be judged."""
    parser = argparse.ArgumentParser(
        prog="python -m proof.history",
        description="Judge the history of a run again: a file of JSON lines that make torture has left.",
    )
    parser.add_argument("file", type=Path, help="history.jsonl in the folder that the run named")
    path = parser.parse_args(words).file
    try:
        scene, history, final = read_history(path)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if final is None:
        print(f"{path} ends before the look at the database, so it cannot be judged.", file=sys.stderr)
        return 2
    violations = judge(scene, history, final)
    for each in violations:
        print(f"{each.invariant}: {each.what}")
    print(f"{len(history.calls)} calls, scene {scene}: {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
