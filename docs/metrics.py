"""Writes the table of metrics.md from `popserver.metrics.names`.

python docs/metrics.py           rewrites the table
python docs/metrics.py --check   writes nothing; exits with 1 if the table is stale
"""

from __future__ import annotations

import sys
from pathlib import Path

from popserver.metrics.names import COMMON, METRICS, Scope

PAGE = Path(__file__).with_suffix(".md")
START, END = "<!-- The table: python docs/metrics.py -->\n", "<!-- End of the table. -->\n"
OF = {Scope.SERVER: "server", Scope.STORE: "database"}


def table() -> str:
    """A row for each metric, in the order of the export."""
    rows = [
        f"| `{each.name}` | {each.kind} | {OF[each.scope]} | {', '.join(f'`{label}`' for label in each.labels)} |"
        f" {each.help} |"
        for each in METRICS
    ]
    common = ", ".join(f"`{label}`" for label in COMMON)
    return "\n".join(
        [
            f"All have the labels {common}.",
            "",
            "| Name | Type | Of | Labels | Value |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def page() -> str:
    before, rest = PAGE.read_text().split(START)
    _, after = rest.split(END)
    return f"{before}{START}{table()}{END}{after}"


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit("docs/metrics.md is stale; run: python docs/metrics.py")
