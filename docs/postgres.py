"""Writes the tables of postgres.md from `popserver.postgres.sessions`.

python docs/postgres.py           rewrites the tables
python docs/postgres.py --check   writes nothing; exits with 1 if a table is stale
"""

from __future__ import annotations

import sys
from pathlib import Path

from popserver.postgres.sessions import FREE, PINNED, REQUIRED

PAGE = Path(__file__).with_suffix(".md")
TABLES = {
    "set": ("Setting", "Set to", "Why"),
    "required": ("Setting", "Must be", "Why, and what to do"),
    "free": ("Setting", "Why it may have any value"),
}


def rows() -> dict[str, list[tuple[str, ...]]]:
    """The cells of each table."""
    return {
        "set": [
            (f"`{each.name}`", f"`{each.value}`" + (f"; writer: `{each.writer}`" if each.writer else ""), each.why)
            for each in PINNED
        ],
        "required": [(f"`{each.name}`", f"`{each.value}`", f"{each.why}; {each.way_out}") for each in REQUIRED],
        "free": [(f"`{each.name}`", each.why) for each in FREE],
    }


def page() -> str:
    """The page with its tables made anew."""
    text = PAGE.read_text()
    for name, listed in rows().items():
        start, end = f"<!-- The table {name}: python docs/postgres.py -->\n", f"<!-- End of the table {name}. -->\n"
        head = TABLES[name]
        lines = [head, ("---",) * len(head), *listed]
        made = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
        before, rest = text.split(start)
        _, after = rest.split(end)
        text = f"{before}{start}{made}{end}{after}"
    return text


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit("docs/postgres.md is stale; run: python docs/postgres.py")
