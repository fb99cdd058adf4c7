"""Writes the totals of the harnesses, `proof/totals/`, into promises.md and the README.

python docs/promises.py           rewrites both
python docs/promises.py --check   writes nothing; exits with 1 if one is stale
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from proof.totals import FAULT, FOLDER, read_totals

ROOT = Path(__file__).parents[1]
START, END = "<!-- The totals: python docs/promises.py -->\n", "<!-- End of the totals. -->\n"
# What each harness does and counts, in the order of the table.
HARNESSES = {
    "simulation": ("the broker on a manual clock, with clients and faults drawn from a seed", "make simulate"),
    "torture": ("servers, databases and clients that are killed, stopped and cut off under load", "make torture"),
    "power_cuts": ("databases as a power cut leaves them: writes dropped, kept, torn, reordered", "make power-cuts"),
    "worlds": ("every order of events of a few messages, groups and clients", "make worlds"),
    "mutations": (
        "the rules of states, handles, FIFO, progress and filters, each changed in one place; tests have to notice",
        "make mutations",
    ),
    "fuzz": (
        "requests of every call, HTTP, HTTP/2, filters, handles, files and notifications that nobody would"
        " send, the time of each, and what they leave in memory",
        "make fuzz",
    ),
    "upgrades": ("databases of earlier versions, killed while they migrate", "make upgrades"),
    "soak": ("a server under load: memory, files, threads, tables must not grow", "make soak"),
}
# Counts of the line in the README: what, of which harness, its name there.
HEADLINE = (
    ("kills", "torture", ("kills", "database_kills", "client_kills", "spark_kills")),
    ("images of power cuts", "power_cuts", ("images", "postgres_images")),
    ("simulated steps", "simulation", ("steps",)),
    ("fuzzed inputs", "fuzz", ("inputs",)),
)


def table(totals: Mapping[str, Mapping[str, int]]) -> str:
    """A row for each harness that has run."""
    rows = [
        f"| {what} | `{command}` | {counted(totals[name])} | {totals[name]['violations']:,} |"
        for name, (what, command) in HARNESSES.items()
        if name in totals
    ]
    if not rows:
        return "No run has been counted yet.\n"
    kinds = [
        f"| `{HARNESSES[name][1]}` | {faults} |" for name in HARNESSES if (faults := by_kind(totals.get(name, {})))
    ]
    if kinds:
        kinds = [
            "Faults by their kinds, counted since 30 November 2026:",
            "",
            "| Command | Faults |",
            "|---|---|",
            *kinds,
            "",
        ]
    return "\n".join(["| What | Command | Counted | Violations |", "|---|---|---|---|", *rows, "", *kinds])


def counted(counts: Mapping[str, int]) -> str:
    named = {name: count for name, count in counts.items() if name != "violations" and not name.startswith(FAULT)}
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in named.items())


def by_kind(counts: Mapping[str, int]) -> str:
    faults = {name.removeprefix(FAULT): count for name, count in counts.items() if name.startswith(FAULT)}
    return "; ".join(f"{name}: {count:,}" for name, count in faults.items())


def headline(totals: Mapping[str, Mapping[str, int]]) -> str:
    """One line for the README."""
    parts = [
        f"{sum(totals[harness].get(each, 0) for each in names):,} {words}"
        for words, harness, names in HEADLINE
        if harness in totals
    ]
    if not parts:
        return "`make proof` tries to break these promises.\n"
    violations = sum(each["violations"] for each in totals.values())
    return f"**{', '.join(parts)}: {violations:,} violations** ([totals](docs/promises.md#totals), `make proof`).\n"


def pages() -> dict[Path, str]:
    """Both pages, made anew."""
    totals = {name: counts for name in HARNESSES if (counts := read_totals(name, FOLDER))}
    made = {ROOT / "docs" / "promises.md": table(totals), ROOT / "README.md": headline(totals)}
    return {path: with_totals(path.read_text(), text) for path, text in made.items()}


def with_totals(page: str, text: str) -> str:
    before, rest = page.split(START)
    _, after = rest.split(END)
    return f"{before}{START}{text}{END}{after}"


if __name__ == "__main__":
    for path, text in pages().items():
        if "--check" not in sys.argv:
            path.write_text(text)
        elif path.read_text() != text:
            sys.exit(f"{path.name} is stale; run: python docs/promises.py")
