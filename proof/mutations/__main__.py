"""python -m proof.mutations: change the code in one place at a time; the tests have to notice."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from proof.mutations.forks import SETTLED, Verdict
from proof.mutations.host import SECONDS_MIN
from proof.mutations.judge import RoomResult, Selection, judge, mutants_in
from proof.mutations.mutants import Mutant
from proof.mutations.record import Record
from proof.mutations.rooms import ROOMS, SCORE_MIN, MutatedRoom
from proof.mutations.survivors import EXPLAINED, Survivors, divide, read_explained
from proof.mutations.types import by_types
from proof.totals import FOLDER, replace_totals

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Judge rooms and print their scores. Exit code 1: a core room has a low score or an unexplained survivor."""
    parser = _parser()
    options = parser.parse_args()
    root = Path(options.root).resolve()
    os.chdir(root)
    sys.path.insert(0, str(root))
    selection = Selection(options.only, options.sample, options.seed, not options.functions)
    if options.source:
        given = MutatedRoom(
            tuple(options.source), tuple(options.tests), is_core=True, with_postgres=options.postgres, is_typed=False
        )
        rooms = {"given": given}
    else:
        rooms = {name: ROOMS[name] for name in options.room or ROOMS}
    reasons = read_explained(Path(options.explained))
    if (options.totals or options.again) and (options.source or not selection.is_whole):
        parser.error("--totals and --again are about whole rooms; leave out --source, --only and --functions")
    record = Record(root, Path(options.record)) if options.totals or options.again else None
    is_good = True
    for name, room in rooms.items():
        mutants = mutants_in(room, root)
        result = _judged(room, root, mutants, selection, record, options, reasons)
        survivors = divide(mutants, result.survivors(), reasons)
        _report(name, len(mutants), result, survivors)
        is_good = is_good and (not room.is_core or (result.score >= SCORE_MIN and not survivors.unexplained))
        if record is not None:
            replace_totals("mutations", name, _counts(room, len(mutants), result, survivors), record.folder)
    if not is_good:
        print(f"A core room needs a score of {SCORE_MIN}, and a reason for each survivor in {EXPLAINED.name}.")
        print("To judge one function again: python -m proof.mutations ROOM --only FUNCTION")
    return 0 if is_good else 1


def _judged(
    room: MutatedRoom,
    root: Path,
    mutants: Sequence[Mutant],
    selection: Selection,
    record: Record | None,
    options: argparse.Namespace,
    reasons: Mapping[tuple[str, str], str],
) -> RoomResult:
    """Judge what is selected, and add what the record knows of the others."""
    known = record.read(mutants) if record is not None else [None] * len(mutants)
    if options.again:
        known = [verdict and by_types(verdict, one, root) for one, verdict in zip(mutants, known, strict=True)]
    wanted: Iterable[int] = (at for at, verdict in enumerate(known) if _is_wanted(verdict, again=options.again))
    if options.again:
        wanted = (at for at in wanted if (mutants[at].place, mutants[at].change) not in reasons)
    if places := selection.of(mutants, wanted):
        noted = record.noting(mutants) if record is not None else None
        verdicts = judge(
            room,
            root,
            [mutants[at] for at in places],
            options.jobs,
            options.seconds,
            on_verdict=lambda index, verdict: noted(places[index], verdict) if noted else None,
        )
        known = [*map(dict(zip(places, verdicts, strict=True)).get, range(len(mutants)), known)]
    if record is not None:
        record.keep(mutants, known)
    return RoomResult.of(mutants, known)


def _is_wanted(verdict: Verdict | None, *, again: bool) -> bool:
    return verdict is not None and verdict not in SETTLED if again else verdict is None


def _counts(room: MutatedRoom, mutants: int, result: RoomResult, survivors: Survivors) -> dict[str, int]:
    is_low = result.score < SCORE_MIN
    return {
        "mutants": mutants,
        "judged": len(result.mutants),
        "killed": result.killed,
        "refused": result.refused,
        "explained": len(survivors.explained),
        "survived": len(survivors.unexplained),
        "violations": len(survivors.unexplained) if room.is_core else int(is_low),
    }


def _report(name: str, mutants: int, result: RoomResult, survivors: Survivors) -> None:
    is_whole = len(result.mutants) == mutants
    of = "" if is_whole else f" of {mutants}"
    print(
        f"{name}: {len(result.mutants)}{of} mutants, {result.killed} killed, {len(survivors.explained)} explained,"
        f" {len(survivors.unexplained)} unexplained; score {result.score:.3f}"
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
        help="judge what has no verdict in proof/totals yet, and put the verdicts there; with --sample so many of each",
    )
    parser.add_argument("--again", action="store_true", help="judge once more what has survived without a reason")
    parser.add_argument("--record", default=str(FOLDER), metavar="FOLDER", help="in place of proof/totals")
    parser.add_argument("--root", default=str(ROOT), help="the folder that files are named from")
    parser.add_argument("--source", action="append", metavar="FILE", help="a file to change, in place of a room")
    parser.add_argument("--tests", action="append", default=[], metavar="FILE", help="tests for --source")
    parser.add_argument("--postgres", action="store_true", help="the tests for --source use Postgres")
    parser.add_argument("--explained", default=str(EXPLAINED), metavar="FILE", help="why survivors may survive")
    return parser


if __name__ == "__main__":
    sys.exit(main())
