"""What attacks do to a server, and to a well-behaved client at the same time.

Each attack has its own server process with default options. The process is restarted after the attack's messages are
stored, so that "idle" is the memory of a fresh server. Linux only: memory is read from /proc, attackers use 127.0.0.66.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bench import Bench
from benchmarks.case import Case, Figures, Rounds
from benchmarks.floods import FLOODS
from benchmarks.generator import Generator
from benchmarks.machine import cpu_seconds
from benchmarks.meter import quantiles_ms
from benchmarks.servers import Variant

GROWN_MIB_MAX = 256
P99_MS_MAX = 250
USER = ("bench-admin", "bench-secret-1")
CALLS = ("send", "receive", "ack")
_MIB = 1024 * 1024


class Attack(NamedTuple):
    """`name` is a method of `attack_load.AttackLoad`, or a flood.

    `auth`: the server requires signatures, and the attacker has none.
    """

    name: str
    title: str
    auth: bool = False


ATTACKS = (
    Attack("filter", "receives whose filter has 500 terms, 64,000 messages in 256 queues"),
    Attack("filters", "distinct filters of 16 KB on an empty topic"),
    Attack("bodies", "24 unfinished sends of 31 MiB, unsigned", auth=True),
    Attack("frames", "24 unfinished Telemetry frames of 31 MiB"),
    Attack("sends", "40 sends of 28 MiB at once"),
    Attack("watches", "10,000 health watches on one connection, unsigned", auth=True),
    Attack("connections", "6,600 connections with a health watch each, unsigned", auth=True),
    Attack("addresses", "the same 6,600 from 100 addresses", auth=True),
    Attack("unread", "12 receives of 32 x 4 MiB that the client does not read"),
    Attack("settings", "settings with 2,000 subscriptions of 14 KB each"),
    Attack("members", "lists of members with 3,000 subscriptions of 14 KB each"),
    Attack("locks", "locks of 300,000 queues in a request"),
    Attack("polls", "10,000 polls of one client"),
    *(Attack(name, flood.title) for name, flood in FLOODS.items()),
)


def attacked(attack: Attack) -> Callable[[Bench], Rounds]:
    def measure(bench: Bench) -> Rounds:
        return {name: [_once(bench, name, popmq, attack)] for name, popmq in bench.popmqs.items()}

    return measure


ABUSE_CASES = {f"abuse_{each.name}": Case(each.title, attacked(each), key="p99", unit="ms") for each in ATTACKS}


def abuse_table(results: Mapping[str, Any]) -> str:
    """One line per attack and server: its cost, and whether it is within the limits."""
    found = {name: result for name, result in results.items() if name in ABUSE_CASES}
    if not found:
        return ""
    lines = [
        _LINE.format("attack", "server", "", "idle", "peak", "grown", "", "quiet", "p99", "", "lost", "refused", "CPU")
    ]
    lines[0] += f"  outcome (limits: {GROWN_MIB_MAX} MiB grown, p99 of {P99_MS_MAX} ms; nothing lost or refused)"
    for name, result in found.items():
        for variant, own in result["variants"].items():
            figures = own["rounds"][-1]
            lines.append(_line(name, variant, figures))
    return "\n".join(lines)


def _line(name: str, variant: str, figures: Figures) -> str:
    verdict = figures["within"]
    said = ", ".join(f"{what} {count:,}" for what, count in sorted(figures["outcome"].items()))
    calls = " ".join(f"{call} {figures['calls'][call].get('p99', 0):.0f}" for call in (*CALLS, "newcomer"))
    refusals = ", ".join(f"{what} {count:,}" for what, count in sorted(figures["refused"].items()))
    line = _LINE.format(
        name.removeprefix("abuse_"),
        variant,
        "pass" if all(verdict.values()) else "FAIL",
        f"{figures['idle_mib']:.0f}",
        f"{figures['peak_mib']:.0f}",
        f"{figures['grown_mib']:.0f}",
        "ok" if verdict["memory"] else "OVER",
        f"{figures['quiet_p99']:.0f}",
        f"{figures['p99']:.0f}",
        "ok" if verdict["p99"] else "OVER",
        figures["lost"],
        sum(figures["refused"].values()),
        f"{figures['cpu']:.0%}",
    )
    return f"{line}  {said}; p99 {calls}" + (f"; refused beside it: {refusals}" if refusals else "")


_LINE = "{:12} {:8} {:4} {:>5} {:>6} {:>6} {:4} {:>6} {:>7} {:4} {:>5} {:>7} {:>5}"


def _once(bench: Bench, name: str, popmq: Path, attack: Attack) -> Figures:
    plan = bench.plan
    url = bench.new_url("sqlite", f"abuse_{attack.name}")
    variant = Variant(name, url, ("--auth",) if attack.auth else (), popmq=popmq, environment=_environment(attack))
    bench.say(f"{name}: {attack.title}")
    with bench.alone(variant) as server, Generator(server, None) as attacker:
        attacker.run("attack.prepare", attack=attack.name)
    with ExitStack() as running:
        server = running.enter_context(bench.alone(variant))
        beside, attacker = (running.enter_context(Generator(server, None)) for _ in range(2))
        user = USER if attack.auth else None
        seconds = plan.abuse_quiet_seconds + plan.abuse_seconds + plan.abuse_after_seconds
        # Both processes run and the client's topics exist before the measurement starts.
        beside.run("beside.work", seconds=0.5, workers=4, rounds_per_s=plan.abuse_rounds_per_s, user=user)
        attacker.run("attack.prepare", attack="")
        beside.begin("beside.work", seconds=seconds, workers=4, rounds_per_s=plan.abuse_rounds_per_s, user=user)
        time.sleep(plan.abuse_quiet_seconds)
        idle = memory_mib(server.pid, "VmRSS")
        forget_peak(server.pid)
        begun, cpu = time.monotonic(), cpu_seconds(server.pid)
        outcome = attacker.run("attack.run", attack=attack.name, seconds=plan.abuse_seconds)
        taken = time.monotonic() - begun
        busy = (cpu_seconds(server.pid) - cpu) / taken
        seen = beside.figures()
        peak = memory_mib(server.pid, "VmHWM")
    return _figures(
        seen, begun, {"idle_mib": idle, "peak_mib": peak, "cpu": busy, "seconds": taken, "outcome": outcome}
    )


def _figures(seen: dict[str, Any], begun: float, server: Figures) -> Figures:
    samples: dict[str, Sequence[tuple[float, float]]] = seen["samples"]
    during = {call: quantiles_ms([ms / 1e3 for at, ms in samples[call] if at >= begun]) for call in samples}
    before = {call: quantiles_ms([ms / 1e3 for at, ms in samples[call] if at < begun]) for call in samples}
    grown, p99 = server["peak_mib"] - server["idle_mib"], max(during[call].get("p99", 0.0) for call in CALLS)
    within = {
        "memory": grown <= GROWN_MIB_MAX,
        "p99": p99 <= P99_MS_MAX,
        "lost": seen["lost"] == 0,
        "refused": not seen["refused"],
    }
    return server | {
        "grown_mib": grown,
        "p99": p99,
        "quiet_p99": max(before[call].get("p99", 0.0) for call in CALLS),
        "calls": during,
        "quiet": before,
        "lost": seen["lost"],
        "refused": seen["refused"],
        "within": within,
    }


def _environment(attack: Attack) -> dict[str, str]:
    return {"POPMQ_ADMIN_ACCESS_KEY": USER[0], "POPMQ_ADMIN_SECRET": USER[1]} if attack.auth else {}


def memory_mib(pid: int, which: str) -> float:
    """`VmRSS`, the memory of the process, or `VmHWM`, its maximum so far; in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / _MIB for line in lines if line.startswith(f"{which}:"))


def forget_peak(pid: int) -> None:
    """Reset the maximum memory of the process."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
