"""Makes the synchronous clients, popclient/_sync, from the asyncio clients in popclient/aio.

A file of popclient/aio is made into a synchronous one unless popclient/_sync has a written file of that name. What the
patterns below do not cover is said in the source, in comments above a class or a method:

    # sync: how many tasks => how many threads

replaces the next occurrence of the first phrase by the second one. `...` stands for any text, a space for any gap.

    python scripts/unasync.py [--check]    # --check writes nothing, and fails if a file is not up to date
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[1] / "popclient"
SOURCE, TARGET = PACKAGE / "aio", PACKAGE / "_sync"
WRITTEN: Final = ("__init__.py", "callbacks.py", "signals.py")
PATTERNS: Final = (
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__a(enter|exit|iter)__", r"__\1__"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\bHere\b", "LoopThread"),
    (r"\bfrom popclient\.aio\b", "from popclient._sync"),
    (r'"popclient\.aio"', '"popclient"'),
    (r"<aio\.", "<"),
    (r"(?<=\"\"\")The asyncio ", "The synchronous "),
)
DIRECTIVE: Final = re.compile(r"^ *# sync: (.+?) =>(?: (.*))?\n", re.MULTILINE)


def main() -> int:
    stale = []
    for source in sorted(SOURCE.rglob("*.py")):
        name = source.relative_to(SOURCE)
        if str(name) in WRITTEN:
            continue
        target = TARGET / name
        made = tidy(synchronous(source.read_text("utf-8")))
        made = f"# Made by scripts/unasync.py from popclient/aio/{name}. Do not edit.\n{made}"
        if not target.exists() or target.read_text("utf-8") != made:
            stale.append(target)
            if "--check" not in sys.argv:
                target.parent.mkdir(exist_ok=True)
                target.write_text(made, "utf-8")
    if stale and "--check" in sys.argv:
        print("not up to date; run scripts/unasync.py:", *stale)
        return 1
    return 0


def synchronous(text: str) -> str:
    while found := DIRECTIVE.search(text):
        before, after = text[: found.start()], text[found.end() :]
        phrase = re.escape(found[1]).replace(r"\.\.\.", ".*?").replace(r"\ ", r"\s+")
        after, count = re.subn(phrase, lambda _: found[2] or "", after, count=1, flags=re.DOTALL)
        if not count:
            raise SystemExit(f"{found[1]!r} does not follow; correct the comment")
        text = before + after
    for pattern, replacement in PATTERNS:
        text = re.sub(pattern, replacement, text)
    return text


def tidy(text: str) -> str:
    """In the order and the shape that ruff wants."""
    for command in (
        ["check", "--quiet", "--fix-only", "--unsafe-fixes", "--select=I001,F401,UP028"],
        ["format", "--quiet"],
    ):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(TARGET / "client.py"), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, check=True, text=True).stdout
    return text


if __name__ == "__main__":
    sys.exit(main())
