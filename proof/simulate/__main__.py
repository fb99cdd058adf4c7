"""Simulate runs of a broker with faults: python -m proof.simulate --help."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from proof.simulate.jobs import quiet, run_all
from proof.simulate.run import STEPS, Plan, Result, simulate
from proof.simulate.shrink import shrunk
from proof.simulate.stores import Store
from proof.totals import add_totals, read_totals
from tests.support.postgres import fresh_database, postgres_server

HOUR_MS = 3_600_000
TOTALS_EVERY_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.simulate", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the first run; without it, the first that the totals do not count")
    parser.add_argument("--steps", type=int, default=3_000, help="how many in all, in runs of 300 at most")
    parser.add_argument("--until", type=int, help="go on until the totals count so many steps")
    parser.add_argument("--jobs", type=int, default=2, help="processes that share the runs (%(default)s)")
    parser.add_argument(
        "--without", default="", help="steps of the first run that are left out, as a report names them"
    )
    parser.add_argument("--faultless", default="", help="steps of the first run that keep their faults back")
    parser.add_argument(
        "--database",
        choices=["sqlite", "postgres"],
        default="sqlite",
        help="where runs store; on Postgres half of them have two servers",
    )
    given = parser.parse_args()
    quiet()
    before = read_totals("simulation")
    seed = before.get("seeds", 0) if given.seed is None else given.seed
    steps = max(0, given.until - before.get("steps", 0)) if given.until else given.steps
    with _databases(given.database, given.jobs) as urls:
        if given.without or given.faultless:
            plan = Plan(seed, min(steps, STEPS), _numbers(given.without), _numbers(given.faultless))
            with closing(Store(urls[0])) as store:
                return _again(plan, store)
        return _run(seed, steps, urls)


@contextmanager
def _databases(kind: str, jobs: int) -> Iterator[list[str]]:
    """The URLs of empty databases, one for each process."""
    if kind == "sqlite":
        yield ["sqlite://"] * jobs
        return
    with postgres_server() as server, ExitStack() as databases:
        yield [databases.enter_context(fresh_database(server)) for _ in range(jobs)]


def _run(seed: int, steps: int, urls: Sequence[str]) -> int:
    """Runs of one seed after the other, until so many steps are done or a run finds something."""
    began_s = told_s = time.monotonic()
    counts: Counter[str] = Counter()
    with closing(run_all(_plans(seed, steps), urls)) as results:
        for plan, result in results:
            counts += result.counts
            counts["seeds"] += 1
            if result.violations:
                failed = plan, result
                break
            if time.monotonic() - told_s > TOTALS_EVERY_S:
                told_s = time.monotonic()
                _tell(counts, told_s - began_s)
                counts.clear()
                began_s = told_s
        else:
            _tell(counts, time.monotonic() - began_s)
            return 0
    _add(counts, 1)
    with closing(Store(urls[0])) as store:
        _report(*failed, store)
    return 1


def _plans(seed: int, steps: int) -> Iterator[Plan]:
    while steps > 0:
        yield Plan(seed, min(steps, STEPS))
        seed, steps = seed + 1, steps - STEPS


def _tell(counts: Counter[str], took_s: float) -> None:
    print(_line(counts, took_s), flush=True)
    _add(counts, 0)


def _add(counts: Counter[str], violations: int) -> None:
    hours = round(counts["simulated ms"] / HOUR_MS)
    named = {name: count for name, count in counts.items() if name != "simulated ms"}
    add_totals("simulation", {**named, "simulated_hours": hours, "violations": violations})


def _line(counts: Counter[str], took_s: float) -> str:
    ratio = counts["simulated ms"] / 1_000 / took_s
    told = ", ".join(f"{counts[name]} {name}" for name in ("seeds", "steps", "faults", "deliveries"))
    return f"{told}; {counts['steps'] / took_s:.0f} steps/s, {ratio:.0f} times as fast as real time; no violation"


def _report(plan: Plan, result: Result, store: Store) -> None:
    for each in result.violations[:10]:
        print(f"{each.invariant}: {each.what}")
    small = shrunk(plan, result, store)
    database = " DATABASE=postgres" if store.database.is_shared else ""
    words = f"make simulate SEED={plan.seed} STEPS={plan.steps}{database}"
    lists = {"without": small.without, "faultless": small.faultless}
    more = " ".join(f"--{name} {','.join(map(str, sorted(numbers)))}" for name, numbers in lists.items() if numbers)
    print(f"{_named(plan, store)}; {small.steps - len(small.without)} steps are enough:")
    print(f'{words} ARGS="{more}"' if more else words, flush=True)


def _again(plan: Plan, store: Store) -> int:
    result = simulate(plan, store)
    for each in result.violations:
        print(f"{each.invariant}: {each.what}")
    print(f"{_named(plan, store)}: {result.counts['steps']} steps, {len(result.violations)} violations")
    return 1 if result.violations else 0


def _named(plan: Plan, store: Store) -> str:
    return f"Seed {plan.seed}, {plan.scene}, servers: {plan.servers_on(store)}"


def _numbers(words: str) -> frozenset[int]:
    return frozenset(int(each) for each in words.split(",") if each)


if __name__ == "__main__":
    sys.exit(main())
