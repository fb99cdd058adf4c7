"""Writes the totals of the harnesses, `proof/totals/`, into promises.md and the README.

python docs/promises.py           rewrites both
python docs/promises.py --check   writes nothing; exits with 1 if one is stale
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from proof.totals import COMBINATION, FAULT, FOLDER, SETTING, read_totals

ROOT = Path(__file__).parents[1]
START, END = "<!-- The totals: python docs/promises.py -->\n", "<!-- End of the totals. -->\n"
# What each harness does and counts, in the order of the table.
HARNESSES = {
    "simulation": ("the broker on a manual clock, with clients and faults drawn from a seed", "make simulate"),
    "torture": ("servers, databases and clients that are killed, stopped and cut off under load", "make torture"),
    "power_cuts": ("databases as a power cut leaves them: writes dropped, kept, torn, reordered", "make power-cuts"),
    "worlds": ("every order of events of a few messages, groups and clients", "make worlds"),
    "mutations": (
        "the code that decides and that changes the store, changed in one place at a time; tests have to notice",
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
    return "\n".join(
        [
            "| What | Command | Counted | Violations |",
            "|---|---|---|---|",
            *rows,
            "",
            *_table_of(FAULT, "Faults by their kinds, counted since 30 November 2026:", "Faults", totals),
            *_table_of(SETTING, "What servers found around them, in rounds and runs:", "Settings", totals),
            *_combinations(totals),
        ]
    )


def _table_of(kind: str, title: str, head: str, totals: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A row for each harness that has counted such names; without any, nothing."""
    told = {name: by_kind(kind, totals.get(name, {})) for name in HARNESSES}
    rows = [f"| `{HARNESSES[name][1]}` | {words} |" for name, words in told.items() if words]
    return [title, "", f"| Command | {head} |", "|---|---|", *rows, ""] if rows else []


def _combinations(totals: Mapping[str, Mapping[str, int]]) -> list[str]:
    seen = {name: sum(each.startswith(COMBINATION) for each in totals.get(name, {})) for name in HARNESSES}
    told = [f"{count} in `{HARNESSES[name][1]}`" for name, count in seen.items() if count]
    return [f"Different combinations of these: {', '.join(told)}. `proof/totals/` names each.", ""] if told else []


def counted(counts: Mapping[str, int]) -> str:
    """Without violations, and without the kinds of faults and settings, which have tables of their own."""
    named = {name: count for name, count in counts.items() if name != "violations" and ": " not in name}
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in named.items())


def by_kind(kind: str, counts: Mapping[str, int]) -> str:
    named = {name.removeprefix(kind): count for name, count in counts.items() if name.startswith(kind)}
    return "; ".join(f"{name}: {count:,}" for name, count in named.items())


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
