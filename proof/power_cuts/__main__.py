"""python -m proof.power_cuts: record runs, and judge what power cuts would have left; see `--help`."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from proof.history.scenes import Scene
from proof.power_cuts.disk import Keep
from proof.power_cuts.judging import Finding, judge_image, judge_images
from proof.power_cuts.recording import CALLS, SCENES, Durability, Plan, Recording, record
from proof.totals import add_totals, read_totals

HARNESS = "power_cuts"
IMAGES_OF_A_RUN = {False: 1_000, True: 100}  # by whether it is on Postgres, which takes much longer to start on each
SERVE_EVERY = {False: 201, True: 41}  # no multiples of the ways of keeping, so that each of them has its turn


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m proof.power_cuts",
        description="Record what a database writes and syncs while clients work, make images of power cuts from it"
        " (writes dropped, kept, torn and reordered), open each one and judge it. Some are served and consumed, too."
        " Each run adds its counts to proof/totals/power_cuts.json.",
    )
    parser.add_argument("--images", type=int, default=1_000, help="how many in all, of both databases (1000)")
    parser.add_argument("--until", type=int, help="go on until the totals have so many images")
    parser.add_argument("--database", choices=["sqlite", "postgres"], help="only this one; else a tenth of Postgres")
    parser.add_argument("--scene", choices=sorted(SCENES), help="what clients do (by the seed)")
    parser.add_argument("--seed", type=int, help="the first run's seed; the next runs count on from it (random)")
    parser.add_argument("--calls", type=int, default=CALLS, help=f"calls of a run that succeed ({CALLS})")
    parser.add_argument("--durability", choices=list(Durability), default=Durability.FULL, help="what is synced; images"
                        " of less than `full` break promises, and are not counted")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=2, help="processes that judge (2)")
    parser.add_argument("--again", type=Path, metavar="FOLDER", help="judge one image of a kept recording again")
    parser.add_argument("--image", type=int, default=0, help="its number")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    options = arguments(words)
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    if options.again:
        return _again(options.again, seed, options.image)
    wanted = options.images if options.until is None else options.until - images_of(read_totals(HARNESS))
    while wanted > 0:
        on_postgres = options.database == "postgres" or (options.database is None and seed % 2 == 1)
        scene = Scene(options.scene) if options.scene else None
        plan = Plan(seed, on_postgres, scene, Durability(options.durability), options.calls)
        counts, findings = _run(plan, wanted, options.jobs)
        if findings:
            return 1
        wanted, seed = wanted - images_of(counts), seed + 1
    return 0


def _run(plan: Plan, wanted: int, jobs: int) -> tuple[Counter[str], list[Finding]]:
    """One recording and its images; its folder stays if something was found."""
    folder, began_s = Path(tempfile.mkdtemp(prefix=f"popmq-power-{plan.seed}-")), time.monotonic()
    asyncio.run(record(plan, folder))
    cuts = range(max(1, min(wanted, IMAGES_OF_A_RUN[plan.on_postgres]) // len(Keep)))
    counts: Counter[str] = Counter()
    findings: list[Finding] = []
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        shares = [
            pool.submit(judge_images, folder, plan.seed, cuts[each::jobs], SERVE_EVERY[plan.on_postgres])
            for each in range(jobs)
        ]
        for share in shares:
            counted, found = share.result()
            counts += counted
            findings += found
    if plan.durability is Durability.FULL:
        add_totals(HARNESS, {**counts, "runs": 1, "violations": len(findings)})
    words = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
    print(f"{plan}: {words}, {len(findings)} break promises, {time.monotonic() - began_s:.0f} s", flush=True)
    if not findings:
        shutil.rmtree(folder)
    for finding in findings[:3]:
        _tell(finding)
        print(
            f"  To judge it again: python -m proof.power_cuts --again {folder} --seed {plan.seed}"
            f" --image {finding.image}",
            flush=True,
        )
    return counts, findings


def _tell(finding: Finding) -> None:
    print(f"Image {finding.image}, {finding.keep} of what no sync covered:")
    for each in finding.violations[:5]:
        print(f"  {each.invariant}: {each.what}")


def _again(folder: Path, seed: int, number: int) -> int:
    """Judge one image of a recording that was kept."""
    recording = Recording(folder)
    for image in recording.images(seed, [number // len(Keep)]):
        if image.number == number:
            violations = judge_image(recording, image, is_served=True)
            _tell(Finding(number, image.keep, violations))
            return 1 if violations else 0
    raise SystemExit(f"{folder} has no image {number} of the seed {seed}; a report names both.")


def images_of(counts: Mapping[str, int]) -> int:
    return counts.get("images", 0) + counts.get("postgres_images", 0)


if __name__ == "__main__":
    sys.exit(main())
