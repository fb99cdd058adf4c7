"""Whether the tables of a built site fit: in a window of 1,280 px none is wider than the text around it.

python docs/tables.py FOLDER   exits with 1, and names pages and tables, if one does not; without Chromium it says so
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Final

from playwright.sync_api import sync_playwright

WINDOW: Final = {"width": 1_280, "height": 800}
# The theme puts each table into a box, which scrolls if the table is wider. The answer: two widths, and the first row.
TOO_WIDE: Final = """tables => tables
    .map(table => [table.parentElement.scrollWidth, table.parentElement.clientWidth, table.rows[0].innerText])
    .filter(([needed, there]) => needed > there)"""


def tables_that_scroll(folder: Path, browser_path: str) -> list[str]:
    """A line for each table that does not fit."""
    found = []
    with (
        sync_playwright() as started,
        started.chromium.launch(executable_path=browser_path, args=["--no-sandbox"]) as browser,
    ):
        tab = browser.new_page(viewport=WINDOW)
        for path in sorted(each for each in folder.rglob("*.html") if "<table" in each.read_text()):
            tab.goto(path.resolve().as_uri(), wait_until="domcontentloaded")
            found += [
                f"{path.relative_to(folder)}: {needed} px in {there}: {' '.join(row.split())}"
                for needed, there, row in tab.eval_on_selector_all("table.docutils", TOO_WIDE)
            ]
    return found


def main(folder: str) -> int:
    browser_path = os.environ.get("POPMQ_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if browser_path is None:
        print("The widths of tables are not checked: no Chromium is installed, and POPMQ_CHROMIUM names none")
        return 0
    found = tables_that_scroll(Path(folder), browser_path)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
