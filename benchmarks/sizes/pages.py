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
    ("send_1_us", "µs of the server, a message sent alone"),
    ("send_32_us", "µs of the server, a message of 32 in a request"),
    ("send_1_database_us", "µs of Postgres, sent alone"),
    ("send_32_database_us", "µs of Postgres, of 32"),
    ("receive_1_us", "µs of the server, received and acked alone"),
    ("receive_32_us", "µs of the server, received and acked with 31 others"),
    ("receive_ordered_us", f"the same, in {MESSAGE_GROUPS:,} message groups"),
    ("receive_ordered_many_us", "the same, in many message groups, with few messages each"),
    ("receive_1_database_us", "µs of Postgres, received and acked alone"),
    ("receive_32_database_us", "µs of Postgres, with 31 others"),
    ("receive_ordered_database_us", f"the same, in {MESSAGE_GROUPS:,} message groups"),
    ("receive_ordered_many_database_us", "the same, in many message groups, with few messages each"),
    ("removal_us", "µs, a message that retention removes"),
    ("server_bytes", "bytes of memory, a server without clients"),
    ("group_bytes", "bytes of memory, an idle group"),
    ("group_us", "µs in a second, an idle group"),
    ("poll_bytes", "bytes of memory, an idle poll"),
    ("poll_us", "µs in a second, an idle poll"),
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
    stored, polls = cases.get("sizes_stored", {}), cases.get("sizes_polls", {})
    return {
        "at": run["at"][:10],
        "machine": f"{facts['cores']} cores, {system[0]} {system[-1]}, Python {facts['python']}",
        "reached": {
            "stored": max([each["stored"] for each in stored.values()], default=run["plan"]["sizes_stored"]),
            "groups": max(each["groups"] for each in units.values()),
            "message_groups": run["plan"]["sizes_message_groups"],
            "idle_polls": max(each["polls"] for each in (*units.values(), *polls.values())),
            "workers": max([each["workers"] for each in polls.values()], default=1),
            "body": max(BODIES),
        },
        "databases": {name: {unit: _rounded(each[unit]) for unit, _ in UNITS} for name, each in units.items()},
    }


def tables(document: Mapping[str, Any], cases: Mapping[str, Mapping[str, Any]]) -> str:
    """What stands in the page between the markers."""
    databases = document["databases"]
    parts = [
        f"\nMeasured on {document['machine']}, {document['at']}.\n\n",
        _table(
            ["each costs", *databases],
            ([words, *(_shown(each[unit]) for each in databases.values())] for unit, words in UNITS),
        ),
    ]
    stored = cases.get("sizes_stored", {})
    if stored:
        parts += [
            "\nThe median of a call in ms, one call at a time; in brackets the CPU time of the server, on SQLite with"
            " that of the database:\n\n",
            _table(
                ["messages stored", *stored],
                ([words, *(_times(each[call]) for each in stored.values())] for call, words in _CALLS.items()),
            ),
            _table_of_stores(stored),
        ]
    return "".join(parts) + "\n"


def _table_of_stores(stored: Mapping[str, Any]) -> str:
    rows: dict[str, Callable[[Mapping[str, Any]], float]] = {
        "start, s": lambda each: each["start_s"],
        "memory of the server, MiB": lambda each: each["server_bytes"] / 2**20,
        "disk, GiB": lambda each: each["disk_bytes"] / 2**30,
        "removal by retention, µs for a message": lambda each: each["removal_us"],
        "a step of it, ms": lambda each: each["removal_step"]["p50"],
    }
    return "".join(
        f"| {words} | {' | '.join(_shown(of(each)) for each in stored.values())} |\n" for words, of in rows.items()
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, ["---"] * len(head), *rows])


def _times(call: Mapping[str, float]) -> str:
    return f"{_shown(call['p50'])} ({_shown(call['server_ms'])})"


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main(sys.argv[1:])
