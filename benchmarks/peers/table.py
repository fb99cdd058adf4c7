"""The results of `peers` as text: one line per workload and server."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.peer_cases import WORKLOADS, Workload


class Measured(NamedTuple):
    """Medians of all rounds. `of` are ratios to the first server, round by round, of the figures that have one."""

    name: str
    facts: Mapping[str, str]
    figures: Mapping[str, float]
    of: Mapping[str, float]
    skipped: str = ""


def measured(results: Mapping[str, Any]) -> list[Measured]:
    """The servers of a run, in its order; the first one is what the others are compared with."""
    variants = results["peers"]["variants"]
    first = next(iter(variants.values()))["rounds"]
    return [_measured(name, each, first) for name, each in variants.items()]


def _measured(name: str, variant: Mapping[str, Any], first: list[Mapping[str, Any]]) -> Measured:
    if "skipped" in variant:
        return Measured(name, {}, {}, {}, variant["skipped"])
    rounds = variant["rounds"]
    facts = {fact: value for fact, value in rounds[-1].items() if isinstance(value, str)}
    names = [name for name in rounds[0] if name not in facts]
    figures = {name: statistics.median(each[name] for each in rounds) for name in names}
    # Figures of a round are from about the same minute; those of different rounds are not.
    pairs = list(zip(rounds, first, strict=True))
    of = {
        name: statistics.median(own[name] / other[name] for own, other in pairs)
        for name in names
        if all(other[name] for _, other in pairs)
    }
    return Measured(name, facts, figures, of)


def peers_table(results: Mapping[str, Any]) -> str:
    """A line per workload and server, then one per server."""
    if "peers" not in results:
        return ""
    servers = measured(results)
    lines = [_LINE.format("workload", "server", "msg/s", "", "p50 ms", "p99 ms", "CPU µs/msg", "")]
    for workload in WORKLOADS:
        lines += [_line(workload, server) for server in servers if not server.skipped]
    lines += ["", _SERVER.format("server", "version", "client", "RSS MiB", "", "fsync µs", "a send is", "an ack is")]
    for server in servers:
        if server.skipped:
            lines.append(f"{server.name:22} skipped: {server.skipped}")
        else:
            facts = server.facts
            lines.append(
                _SERVER.format(
                    server.name,
                    facts["version"],
                    facts["client"],
                    *_with_ratio(server, "memory_mib"),
                    number(server.figures["fsync_us"]),
                    facts["sends"],
                    facts["acks"],
                )
            )
    return "\n".join([*lines, f"in brackets: of {servers[0].name}, round by round"])


def _line(workload: Workload, server: Measured) -> str:
    rate = _with_ratio(server, f"{workload.name}_rate")
    cpu = _with_ratio(server, f"{workload.name}_us")
    quantiles = (number(server.figures[f"{workload.name}_{name}"]) for name in ("p50", "p99"))
    return _LINE.format(workload.title, server.name, *rate, *quantiles, *cpu)


def _with_ratio(server: Measured, figure: str) -> tuple[str, str]:
    if figure not in server.figures:
        return "", ""
    return number(server.figures[figure]), f"({server.of[figure]:.2f})" if figure in server.of else ""


def number(value: float) -> str:
    """Three digits, or all of a large one."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


_LINE = "{:28} {:22} {:>8} {:7} {:>8} {:>8} {:>10} {:7}"
_SERVER = "{:22} {:24} {:18} {:>7} {:7} {:>8} {:36} {}"
