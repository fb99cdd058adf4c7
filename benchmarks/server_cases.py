"""Cases of servers: the ways to connect, several servers on one database, the start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.bench import Bench, Way
from benchmarks.case import STOCK_TOPIC, Figures, Rounds, window
from benchmarks.generator import Generator

TOGETHER = {"1 server": 1, "2 servers": 2}


def door(ways: Mapping[str, Way], load: str, **options: Any) -> Callable[[Bench], Rounds]:
    """The same load by each way to connect, in turns; all servers run."""

    def measure(bench: Bench) -> Rounds:
        found = Rounds()
        with bench.doors(ways, STOCK_TOPIC if load == "raw.receive" else "") as loads:
            for number in range(bench.plan.rounds):
                for name, each in loads.items():
                    bench.say(f"round {number + 1} of {bench.plan.rounds}: {name}")
                    more = {"group": f"bench-door-{number}"} if load == "raw.receive" else {}
                    found.setdefault(name, []).append(each.run(load, **options, **more, **_window(bench, load)))
        return found

    return measure


def together(load: str, **options: Any) -> Callable[[Bench], Rounds]:
    """One server on a Postgres, and two servers, with the same two loads; no process is pinned to a core."""

    def measure(bench: Bench) -> Rounds:
        with bench.together(TOGETHER, STOCK_TOPIC) as loads:
            found: Rounds = {name: [] for name in loads}
            for number in range(bench.plan.rounds):
                for name, both in loads.items():
                    bench.say(f"round {number + 1} of {bench.plan.rounds}: {name}")
                    found[name].append(_by_both(bench, both, load, number, options))
            return found

    return measure


def _by_both(bench: Bench, both: Sequence[Generator], load: str, number: int, options: dict[str, Any]) -> Figures:
    before_s = bench.postgres_cpu_s()
    for index, each in enumerate(both):
        more = {"group": f"bench-together-{number}-{index}"} if load == "raw.receive" else {}
        each.begin(load, **options, **more, **_window(bench, load))
    figures = [each.figures() for each in both]
    # Includes the warm-up, so it is not exact.
    postgres_s = (bench.postgres_cpu_s() - before_s) / (bench.plan.seconds + bench.plan.warm_up)
    pids = {each.server_pid: own["server_busy"] for each, own in zip(both, figures, strict=True)}
    rate = sum(own["rate"] for own in figures)
    busy = {
        "server_busy": sum(pids.values()),
        "load_busy": sum(own["load_busy"] for own in figures),
        "postgres_busy": postgres_s,
    }
    return {"rate": rate, **busy, "cpu_us_per_message": sum(busy.values()) * 1e6 / max(rate, 1)}


def _window(bench: Bench, load: str) -> dict[str, Any]:
    if load == "raw.send":
        return window(bench, body=True)
    stock = bench.plan.stock
    return window(bench) | {"stock": stock, "groups": 1 + int(bench.plan.seconds * 40_000 / stock)}


def start(bench: Bench) -> Rounds:
    return {
        name: [{"ready_s": bench.time_to_ready(name, STOCK_TOPIC)} for _ in range(bench.plan.starts)]
        for name in bench.stores
    }
