"""Cases of servers: the ways to connect, and the start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.bench import Bench, Way
from benchmarks.case import STOCK_TOPIC, Rounds, window


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
