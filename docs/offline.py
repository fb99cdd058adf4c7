"""Whether a built site works without the internet: no page lets a browser fetch from another site.

python docs/offline.py FOLDER   exits with 1, and names the pages and what they fetch, if one does
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ADDRESS = r"""["']?((?:https?:)?//[^\s"'<>)]+)"""
STYLE = [rf"(?:url\(|@import)\s*{ADDRESS}"]
# What a browser fetches by itself; a link that a reader follows is `<a href>`.
FETCHED = {
    ".html": [
        rf"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\ssrc\s*=\s*{ADDRESS}",
        rf"<link\b(?![^>]*\brel=\"(?:canonical|license)\")[^>]*?\shref\s*=\s*{ADDRESS}",
        rf"\b(?:import|from)\s*\(?\s*{ADDRESS}",
        *STYLE,
    ],
    ".css": STYLE,
}


def fetched_from_elsewhere(folder: Path) -> list[str]:
    """A line for each page and each address that it fetches."""
    return sorted(
        f"{path.relative_to(folder)} fetches {address}"
        for path in folder.rglob("*")
        for pattern in FETCHED.get(path.suffix, [])
        for address in re.findall(pattern, path.read_text())
    )


def main(folder: str) -> int:
    found = fetched_from_elsewhere(Path(folder))
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
