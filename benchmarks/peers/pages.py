"""Writes the results of `peers` into docs/benchmarks.md and README.md.

python -m benchmarks.peers.pages [bench.json …]   rounds of several runs count together: give all their files
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peer_cases import WORKLOADS, Workload
from benchmarks.peers.table import Measured, measured, number

ROOT = Path(__file__).parents[2]
PAGES = ("docs/benchmarks.md", "README.md")
BEGIN = "<!-- Figures of `make bench ARGS=peers`: python -m benchmarks.peers.pages -->\n"
END = "<!-- End of the figures. -->\n"
# Those of the README.
CHOSEN = ("send_1", "send_64", "receive_1", "receive_8")
PROMISES = ("server", "version", "driven by", "an answered send is", "an ack is", "memory, MiB", "fsync, µs")
NOISE = 1.05  # what is less is called the same
RATES = [workload for workload in WORKLOADS if workload.load != "latency"]


def main(paths: Sequence[str]) -> None:
    results = together([json.loads(Path(path).read_text()) for path in paths or ["bench-out/bench.json"]])
    servers = measured(results["cases"])
    for page, text in zip(PAGES, (whole(results, servers), short(servers)), strict=True):
        path = ROOT / page
        path.write_text(between(path.read_text(), text, page))


def together(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The results of one run that had the rounds of all."""
    variants: dict[str, Any] = {}
    for run in runs:
        for name, variant in run["cases"]["peers"]["variants"].items():
            known = variants.setdefault(name, {**variant, "rounds": []})
            known["rounds"] = known["rounds"] + variant["rounds"]
    return {**runs[-1], "cases": {"peers": {**runs[-1]["cases"]["peers"], "variants": variants}}}


def between(page: str, text: str, name: str) -> str:
    """The page with this text between its markers. Raises ValueError if it has none."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{name} has no place for the figures; it needs the lines {BEGIN.strip()} and {END.strip()}")
    return f"{head}{BEGIN}{text}{END}{tail}"


def whole(results: Mapping[str, Any], servers: Sequence[Measured]) -> str:
    """All figures: who was measured, rates, latencies, CPU; then what is faster than the first server."""
    running = [each for each in servers if not each.skipped]
    parts = [
        _conditions(results, servers[0]),
        _table(PROMISES, map(_promises, running)),
        _figures("messages per second", RATES, running, lambda each, workload: _cell(each, f"{workload.name}_rate")),
        _figures("server CPU, µs per message", RATES, running, lambda each, name: _cell(each, f"{name.name}_us")),
        _figures("p50 / p99 of a call, ms", WORKLOADS, running, _quantiles),
        f"Faster than {servers[0].name}, and how many times:\n",
        "".join(f"- {line}\n" for line in faster(servers, WORKLOADS)),
        *(f"Not measured: {each.name}; {each.skipped}.\n" for each in servers if each.skipped),
    ]
    return "\n" + "\n".join(parts) + "\n"


def short(servers: Sequence[Measured]) -> str:
    """The few figures of the README."""
    running = [each for each in servers if not each.skipped]
    chosen = [workload for workload in WORKLOADS if workload.name in CHOSEN]
    head = ["messages per second", *(workload.title for workload in chosen), "send to delivery, p50", "memory"]

    def row(server: Measured) -> list[str]:
        rates = (number(server.figures[f"{workload.name}_rate"]) for workload in chosen)
        delivery, memory = number(server.figures["latency_p50"]), number(server.figures["memory_mib"])
        return [server.name, *rates, f"{delivery} ms", f"{memory} MiB"]

    ahead = "; ".join(faster(servers, [*chosen, WORKLOADS[-1]]))
    return f"\n{_table(head, map(row, running))}\nFaster than {servers[0].name}: {ahead}.\n\n"


def faster(servers: Sequence[Measured], workloads: Sequence[Workload]) -> list[str]:
    """For each workload, who is faster than the first server, and how many times."""
    lines = []
    for workload in workloads:
        ahead = sorted(((_times(each, workload), each.name) for each in servers[1:] if not each.skipped), reverse=True)
        named = [f"{name} {times:.1f} ×" for times, name in ahead if times > NOISE]
        lines.append(f"{workload.title}: {', '.join(named) or 'none'}")
    return lines


def _times(server: Measured, workload: Workload) -> float:
    return 1 / server.of["latency_p50"] if workload.load == "latency" else server.of[f"{workload.name}_rate"]


def _conditions(results: Mapping[str, Any], first: Measured) -> str:
    facts, plan = results["environment"], results["plan"]
    rounds = len(results["cases"]["peers"]["variants"][first.name]["rounds"])
    return (
        f"{plan['body_bytes']:,} bytes in each message, rounds: {rounds}, {plan['seconds']:g} s for each figure, on"
        f" {facts['cores']} cores. In brackets: ratios to {first.name} in the same round. The column fsync has the time"
        " of an fdatasync just before, because the disk is shared. RocketMQ, which compiles what runs often, had"
        f" {plan['peers_compiling_seconds']:g} s of load before.\n"
    )


def _promises(server: Measured) -> list[str]:
    facts = [server.facts[name] for name in ("version", "client", "sends", "acks")]
    return [server.name, *facts, _cell(server, "memory_mib"), number(server.figures["fsync_us"])]


def _figures(
    what: str, workloads: Sequence[Workload], servers: Sequence[Measured], cell: Callable[[Measured, Workload], str]
) -> str:
    rows = [[each.name, *(cell(each, workload) for workload in workloads)] for each in servers]
    return _table([what, *(workload.title for workload in workloads)], rows)


def _cell(server: Measured, figure: str) -> str:
    ratio = f" ({server.of[figure]:.2f})" if figure in server.of else ""
    return f"{number(server.figures[figure])}{ratio}"


def _quantiles(server: Measured, workload: Workload) -> str:
    return " / ".join(number(server.figures[f"{workload.name}_{name}"]) for name in ("p50", "p99"))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    main(sys.argv[1:])
