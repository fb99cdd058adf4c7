"""Writes the figures of `sizes` into popserver/sizing/figures.json and docs/sizing.md.

python -m benchmarks.sizes.pages [bench.json …]   of several runs, figures of a later one replace those before
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.sizes.units import BODIES, MESSAGE_GROUPS
from popserver.sizing.units import FIGURES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "sizing.md"
BEGIN = "<!-- Figures of `make bench ARGS=sizes`: python -m benchmarks.sizes.pages -->\n"
END = "<!-- End of the figures. -->\n"
_DIGITS = 3
UNITS = (
    *((f"message_bytes_{body}", f"bytes on the disk, a message of {body:,} bytes") for body in BODIES),
    ("ordered_bytes", "more, if it is in a message group"),
    ("held_bytes", "more, while a group holds it"),
    ("dead_letter_bytes", "more, as a dead letter, which is a second message"),
    ("send_1_us", "µs of the server, a message sent alone, by many callers"),
    ("send_light_us", "the same, by one caller, whose sends share no transaction"),
    ("send_32_us", "µs of the server, a message of 32 in a request"),
    ("send_large_us", f"the same, of {BODIES[-1]:,} bytes"),
    ("receive_1_us", "µs of the server, received and acked alone, by many callers"),
    ("receive_light_us", "the same, by one caller"),
    ("receive_32_us", "µs of the server, received and acked with 31 others"),
    ("receive_large_us", f"the same, of {BODIES[-1]:,} bytes"),
    ("receive_ordered_us", f"µs of the server, with 31 others, in {MESSAGE_GROUPS:,} message groups"),
    ("receive_ordered_many_us", "the same, in many message groups, with few messages each"),
    ("removal_server_us", "µs of the server, a message that retention removes"),
    ("send_1_database_us", "µs of Postgres, a message sent alone, by many callers"),
    ("send_light_database_us", "the same, by one caller, whose sends share no transaction"),
    ("send_32_database_us", "µs of Postgres, a message of 32 in a request"),
    ("send_large_database_us", f"the same, of {BODIES[-1]:,} bytes"),
    ("receive_1_database_us", "µs of Postgres, received and acked alone, by many callers"),
    ("receive_light_database_us", "the same, by one caller"),
    ("receive_32_database_us", "µs of Postgres, received and acked with 31 others"),
    ("receive_large_database_us", f"the same, of {BODIES[-1]:,} bytes"),
    ("receive_ordered_database_us", f"µs of Postgres, with 31 others, in {MESSAGE_GROUPS:,} message groups"),
    ("receive_ordered_many_database_us", "the same, in many message groups, with few messages each"),
    ("removal_database_us", "µs of Postgres, a message that retention removes"),
    ("server_bytes", "bytes of memory, a server without clients"),
    ("group_bytes", "bytes of memory, an idle group"),
    ("group_us", "µs of the server in a second, an idle group"),
    ("group_database_us", "µs of Postgres in a second, an idle group"),
    ("poll_bytes", "bytes of memory, an idle poll"),
    ("poll_us", "µs of the server in a second, an idle poll"),
    ("poll_database_us", "µs of Postgres in a second, an idle poll"),
)
_CALLS = {
    "send": "send one message",
    "receive_and_ack": "receive 32, and ack them",
    "first_receive": "the first receive of a new group",
    "by_id": "find a message by its id",
    "newest": "the newest messages of a topic",
    "peek": "peek",
    "absent_key": "search for a key that no message has",
    "seek": "move a group to yesterday",
    "lag": "lag of a group",
    "topic": "show the topic",
    "status": "status",
}


def main(paths: Sequence[str]) -> None:
    runs = [json.loads(Path(path).read_text()) for path in paths or ["bench-out/bench.json"]]
    cases: dict[str, dict[str, Any]] = {}
    for run in runs:
        for name, case in run["cases"].items():
            cases.setdefault(name, {}).update({name: each["rounds"][-1] for name, each in case["variants"].items()})
    document = figures(runs[-1], cases)
    FIGURES.write_text(json.dumps(document, indent=2) + "\n")
    head, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has no place for the figures; it needs the lines {BEGIN.strip()} and {END.strip()}")
    PAGE.write_text(f"{head}{BEGIN}{tables(document, cases)}{END}{tail}")


def figures(run: Mapping[str, Any], cases: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The content of figures.json."""
    facts, units = run["environment"], cases["sizes_units"]
    system = facts["system"].split()  # its release says nothing about costs
    return {
        "at": run["at"][:10],
        "machine": f"{facts['cores']} cores, {system[0]} {system[-1]}, Python {facts['python']}",
        "databases": {
            name: {unit: _rounded(each[unit]) for unit, _ in UNITS} | {"reached": _reached(run["plan"], cases, name)}
            for name, each in units.items()
        },
    }


def _reached(plan: Mapping[str, Any], cases: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, int]:
    """How much of each was measured on this database."""
    units, over_workers = cases["sizes_units"][name], cases.get("sizes_polls", {}).get(name, {})
    stored = [each["stored"] for title, each in cases.get("sizes_stored", {}).items() if title.startswith(f"{name},")]
    return {
        "stored": max(stored, default=plan["sizes_stored"]),
        "groups": units["groups"],
        "message_groups": plan["sizes_message_groups"],
        "idle_polls": max(units["polls"], over_workers.get("polls", 0)),
        "workers": over_workers.get("workers", 1),
        "body": BODIES[-1],
    }


def tables(document: Mapping[str, Any], cases: Mapping[str, Mapping[str, Any]]) -> str:
    """What stands in the page between the markers."""
    parts = [table_of_units(document)]
    stored = cases.get("sizes_stored", {})
    if stored:
        parts += [
            "\nThe median of a call in ms, one call at a time; in brackets the CPU time of the server, on SQLite with"
            " that of the database, and of Postgres:\n\n",
            _table(
                ["messages stored", *(each.replace(",000,000 stored", " M") for each in stored)],
                ([words, *(_times(each[call]) for each in stored.values())] for call, words in _CALLS.items()),
            ),
            _table_of_stores(stored),
        ]
    return "".join(parts) + "\n"


def table_of_units(document: Mapping[str, Any]) -> str:
    """The figures of figures.json, as the page has them."""
    databases = document["databases"]
    rows = ([words, *(_shown(each[unit]) for each in databases.values())] for unit, words in UNITS)
    measured_on = f"\nMeasured on {document['machine']}, {document['at']}.\n\n"
    return measured_on + _table(["each costs", *databases], rows)


def _table_of_stores(stored: Mapping[str, Any]) -> str:
    rows: dict[str, Callable[[Mapping[str, Any]], float]] = {
        "start, s": lambda each: each["start_s"],
        "memory of the server, MiB": lambda each: each["server_bytes"] / 2**20,
        "disk, GiB": lambda each: each["disk_bytes"] / 2**30,
        "removal by retention, elapsed µs for a message": lambda each: each["removal_us"],
        "a step of it, ms": lambda each: each["removal_step"]["p50"],
    }
    return "".join(
        f"| {words} | {' | '.join(_shown(of(each)) for each in stored.values())} |\n" for words, of in rows.items()
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, ["---"] * len(head), *rows])


def _times(call: Mapping[str, float]) -> str:
    # SQLite has no processes of its own.
    database_ms = call.get("database_ms", 0.0)
    return f"{_shown(call['p50'])} ({_shown(call['server_ms'])}{f' + {_shown(database_ms)}' if database_ms else ''})"


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main(sys.argv[1:])
