"""Writes the tables of metrics.md from `popserver.metrics.names`.

python docs/metrics.py           rewrites the tables
python docs/metrics.py --check   writes nothing; exits with 1 if a table is stale
"""

from __future__ import annotations

import sys
from pathlib import Path

from popserver.metrics.names import COMMON, METRICS, Scope

PAGE = Path(__file__).with_suffix(".md")
TABLE = "<!-- The table: python docs/metrics.py -->\n", "<!-- End of the table. -->\n"
UNITS = "<!-- The names with units: python docs/metrics.py -->\n", "<!-- End of the names with units. -->\n"
OF = {Scope.SERVER: "server", Scope.STORE: "database", Scope.CLIENTS: "clients"}


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


def units() -> str:
    """A row for each metric whose name can end with its unit."""
    rows = [f"| `{each.name}` | `{each.name_with_unit}` |" for each in METRICS if each.name != each.name_with_unit]
    return "\n".join(["| Name | With `--metric-unit-suffix` |", "|---|---|", *rows, ""])


def page() -> str:
    """The page with both tables made anew."""
    text = PAGE.read_text()
    for (start, end), made in ((TABLE, table()), (UNITS, units())):
        before, rest = text.split(start)
        _, after = rest.split(end)
        text = f"{before}{start}{made}{end}{after}"
    return text


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit("docs/metrics.md is stale; run: python docs/metrics.py")
