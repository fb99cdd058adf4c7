"""Writes the tables of postgres.md and sqlite.md from `popserver.postgres.sessions` and `popserver.sqlite`.

python docs/sessions.py           rewrites the tables
python docs/sessions.py --check   writes nothing; exits with 1 if a table is stale
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from popserver.postgres.sessions import PINNED, REQUIRED
from popserver.sqlite.library import LIMITS
from popserver.sqlite.sessions import PRAGMAS

DOCS = Path(__file__).parent
Rows = Sequence[tuple[str, ...]]
PAGES: dict[str, dict[str, Rows]] = {
    "postgres.md": {
        "set": [
            ("Setting", "Set to", "Why"),
            *(
                (f"`{each.name}`", f"`{each.value}`" + (f"; writer: `{each.writer}`" if each.writer else ""), each.why)
                for each in PINNED
            ),
        ],
        "required": [
            ("Setting", "Must be", "Why, and what to do"),
            *((f"`{each.name}`", f"`{each.value}`", f"{each.why}; {each.way_out}") for each in REQUIRED),
        ],
    },
    "sqlite.md": {
        "pragmas": [
            ("Pragma", "Set to", "Why"),
            *((f"`{each.name}`", f"`{each.value}`", each.why) for each in PRAGMAS),
        ],
        "limits": [
            ("Limit", "At least", "Why"),
            *((f"`{each.category}`", f"{each.least:,}", each.why) for each in LIMITS),
        ],
    },
}


def made(name: str) -> str:
    """A page with its tables made anew."""
    text = (DOCS / name).read_text()
    for table, (head, *rows) in PAGES[name].items():
        start = f"<!-- The table {table}: python docs/sessions.py -->\n"
        end = f"<!-- End of the table {table}. -->\n"
        lines = "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ("---",) * len(head), *rows))
        before, rest = text.split(start)
        _, after = rest.split(end)
        text = f"{before}{start}{lines}{end}{after}"
    return text


if __name__ == "__main__":
    for page in PAGES:
        if "--check" not in sys.argv:
            (DOCS / page).write_text(made(page))
        elif (DOCS / page).read_text() != made(page):
            sys.exit(f"docs/{page} is stale; run: python docs/sessions.py")
