"""python -m proof.torture: rounds of load and accidents, until a time or a number of kills; see `--help`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from proof.history.scenes import Scene
from proof.torture.client_processes import kinds_there
from proof.torture.commands import can_have
from proof.torture.place import LAYOUTS
from proof.torture.round import Plan, run_round
from proof.torture.spark_process import spark_is_there
from proof.totals import add_totals, read_totals
from tests.support.postgres import PostgresServer, postgres_server

HARNESS = "torture"
KILLS = ("kills", "database_kills", "client_kills", "spark_kills")


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m proof.torture",
        description="Kill, stop and cut off servers, databases and clients under load, and judge what clients saw."
        " Each round has a new database and adds its counts to proof/totals/torture.json, so a run can end at any time"
        " and another one goes on.",
    )
    parser.add_argument("--minutes", type=float, help="begin no round after this time (10, if no kills are named)")
    parser.add_argument("--kills", type=int, help="begin no round after so many kills in this run")
    parser.add_argument("--until", type=int, help="begin no round when the totals have so many kills")
    parser.add_argument("--seed", type=int, help="the first round's seed; the next rounds count on from it (random)")
    parser.add_argument("--rounds", type=int, help="end after so many rounds; 1 with --seed repeats a round's choices")
    parser.add_argument("--accidents", type=int, default=20, help="accidents of a round (20)")
    parser.add_argument("--database", choices=sorted(LAYOUTS), help="SQLite, Postgres, or 2 or 3 servers on Postgres"
                        " (by the seed)")  # fmt: skip
    parser.add_argument("--scene", choices=sorted(Scene), help="what clients do (by the seed)")
    parser.add_argument("--no-totals", action="store_true", help="leave proof/totals alone")
    options = parser.parse_args(words)
    options.scenes = [each for each in Scene if each is not Scene.SPARK or spark_is_there()]
    if options.scene and options.scene not in options.scenes:
        parser.error("The scene spark needs PySpark and Java 17; see docs/spark.md.")
    return options


class Run:
    """Rounds, one after the other."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._began_s = time.monotonic()
        self._kills = 0
        self._rounds = 0

    def goes_on(self) -> bool:
        options = self._options
        minutes = options.minutes
        if minutes is None and options.kills is None and options.until is None and options.rounds is None:
            minutes = 10.0
        return not (
            (minutes is not None and time.monotonic() - self._began_s > minutes * 60)
            or (options.kills is not None and self._kills >= options.kills)
            or (options.until is not None and kills_of(read_totals(HARNESS)) >= options.until)
            or (options.rounds is not None and self._rounds >= options.rounds)
        )

    async def rounds(self, postgres: PostgresServer | None) -> int:
        """The exit code: 1 after a round that found something, whose folder stays."""
        first = random.SystemRandom().randrange(1 << 32) if self._options.seed is None else self._options.seed
        while self.goes_on():
            options = self._options
            seed = first + self._rounds
            named = options.database, options.scene, options.accidents
            plan = Plan.of(seed, *named, scenes=options.scenes, kinds=kinds_there(), can_have=can_have())
            self._rounds += 1
            if not await self._round(plan, postgres):
                return 1
        return 0

    async def _round(self, plan: Plan, postgres: PostgresServer | None) -> bool:
        folder = Path(tempfile.mkdtemp(prefix=f"popmq-torture-{plan.seed}-"))
        began_s = time.monotonic()
        try:
            result = await run_round(plan, folder, postgres)
        except Exception:  # noqa: BLE001 - whatever it is, the run ends here and says how to repeat it
            traceback.print_exc()
            self._say_how_to_repeat(plan, folder)
            self._add({"violations": 1})
            return False
        self._kills += kills_of(result.counts)
        counts = {"rounds": 1, **result.counts, "violations": len(result.violations)}
        self._add(counts)
        words = ", ".join(f"{count} {name}" for name, count in counts.items() if name != "rounds" and ": " not in name)
        print(f"{plan}: {words}, {time.monotonic() - began_s:.0f} s", flush=True)
        if result.violations:
            print("\n".join(f"{each.invariant}: {each.what}" for each in result.violations[:20]))
            self._say_how_to_repeat(plan, folder)
            return False
        shutil.rmtree(folder)
        return True

    def _add(self, counts: dict[str, int]) -> None:
        if not self._options.no_totals:
            add_totals(HARNESS, counts)

    def _say_how_to_repeat(self, plan: Plan, folder: Path) -> None:
        print(
            f"The history and the logs are in {folder}. Repeat the choices of this round with"
            f" make torture SEED={plan.seed} ROUNDS=1 DATABASE={plan.layout.name} SCENE={plan.scene}",
            flush=True,
        )


def kills_of(counts: dict[str, int]) -> int:
    return sum(counts.get(name, 0) for name in KILLS)


def main(words: Sequence[str] | None = None) -> int:
    options = arguments(words)
    with contextlib.ExitStack() as stack:
        postgres = None
        if options.database != "sqlite":
            postgres = stack.enter_context(postgres_server(own=True))
            assert isinstance(postgres, PostgresServer)
        return asyncio.run(Run(options).rounds(postgres))


if __name__ == "__main__":
    sys.exit(main())
