"""python -m proof.mutations: change the code in one place at a time; the tests have to notice."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from proof.mutations.host import SECONDS_MIN
from proof.mutations.judge import RoomResult, Selection, judge
from proof.mutations.rooms import ROOMS, SCORE_MIN, MutatedRoom
from proof.mutations.survivors import EXPLAINED, Survivors, divide, read_explained
from proof.totals import replace_totals

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Judge rooms and print their scores. Exit code 1: a core room has a low score or an unexplained survivor."""
    parser = _parser()
    options = parser.parse_args()
    root = Path(options.root).resolve()
    os.chdir(root)
    sys.path.insert(0, str(root))
    selection = Selection(options.only, options.sample, options.seed, not options.functions, options.seconds)
    if options.source:
        given = MutatedRoom(tuple(options.source), tuple(options.tests), is_core=True, with_postgres=options.postgres)
        rooms = {"given": given}
    else:
        counted = [name for name, room in ROOMS.items() if room.is_core or not options.totals]
        rooms = {name: ROOMS[name] for name in options.room or counted}
    reasons = read_explained(Path(options.explained))
    if options.totals and (options.source or not selection.is_whole):
        parser.error("--totals counts whole rooms; leave out --source, --only, --functions and --sample")
    is_good = True
    for name, room in rooms.items():
        started = time.monotonic()
        result = judge(room, root, selection, options.jobs)
        survivors = divide(result.mutants, result.survivors(), reasons)
        _report(name, result, survivors, time.monotonic() - started, is_whole=selection.is_whole)
        is_good = is_good and (not room.is_core or (result.score >= SCORE_MIN and not survivors.unexplained))
        if options.totals and room.is_core:
            replace_totals("mutations", name, _counts(result, survivors))
    if not is_good:
        print(f"A core room needs a score of {SCORE_MIN}, and a reason for each survivor in {EXPLAINED.name}.")
        print("To judge one function again: python -m proof.mutations ROOM --only FUNCTION")
    return 0 if is_good else 1


def _counts(result: RoomResult, survivors: Survivors) -> dict[str, int]:
    return {
        "mutants": len(result.mutants),
        "killed": result.killed,
        "explained": len(survivors.explained),
        "violations": len(survivors.unexplained),
    }


def _report(name: str, result: RoomResult, survivors: Survivors, seconds: float, *, is_whole: bool) -> None:
    print(
        f"{name}: {len(result.mutants)} mutants, {result.killed} killed, {len(survivors.explained)} explained,"
        f" {len(survivors.unexplained)} unexplained; score {result.score:.3f}; {seconds:.0f} s"
    )
    kinds = {str(verdict): result.verdicts.count(verdict) for verdict in dict.fromkeys(result.verdicts)}
    print("  " + "; ".join(f"{count} × {kind}" for kind, count in kinds.items()))
    verdicts = dict(zip(result.mutants, result.verdicts, strict=True))
    for mutant in survivors.unexplained:
        print(f"  {mutant.place}, line {mutant.lines[0]} ({verdicts[mutant]}):\n    {mutant.change}")
    for place, change in survivors.stale if is_whole else ():
        print(f"  explained, but killed or gone: {place}: {change}")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m proof.mutations",
        description="Changes the code in one place at a time, by the operators of mutmut. The tests have to notice.",
    )
    parser.add_argument("room", nargs="*", choices=[*ROOMS, []], help="what is changed; all rooms without it")
    parser.add_argument("--only", default="", metavar="TEXT", help="only places with this text, such as a function")
    parser.add_argument("--functions", action="store_true", help="leave out changes that need an import each")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="only N mutants of each room, drawn")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, default=2, help="how many mutants are judged at once (2)")
    parser.add_argument("--seconds", type=float, default=SECONDS_MIN, help="what a mutant may take at least (15)")
    parser.add_argument(
        "--totals",
        action="store_true",
        help="put the counts of core rooms into proof/totals/mutations.json; judges only these, unless rooms are named",
    )
    parser.add_argument("--root", default=str(ROOT), help="the folder that files are named from")
    parser.add_argument("--source", action="append", metavar="FILE", help="a file to change, in place of a room")
    parser.add_argument("--tests", action="append", default=[], metavar="FILE", help="tests for --source")
    parser.add_argument("--postgres", action="store_true", help="the tests for --source use Postgres")
    parser.add_argument("--explained", default=str(EXPLAINED), metavar="FILE", help="why survivors may survive")
    return parser


if __name__ == "__main__":
    sys.exit(main())
