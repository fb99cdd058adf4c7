"""Follows a page of the documentation as a reader does: saves its programs, types its commands, compares what is shown.

A block of Python that begins with `# name.py` is saved under that name. A block of sh is typed into a shell. A block
of text says what the block of sh before it shows; `…` stands for anything. MESSAGE_ID stands for the first message id
that was shown.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.\w+)\n")
MESSAGE_ID = re.compile(r"\b01[0-9A-F]{32}\b")
ADDRESS = "127.0.0.1:8081"
PATIENCE_S = 300


class Block(NamedTuple):
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found.groups()) for found in BLOCK.finditer(page.read_text())]


class Reader:
    """Someone who reads pages in a folder of his own, beside a server."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder = folder
        self.endpoint = endpoint
        self.shown = ""
        self.message_id = "MESSAGE_ID"
        self.compared = 0

    def follow(self, page: list[Block]) -> None:
        for block in page:
            if block.language == "python" and (name := FILE.match(block.text)):
                (self.folder / name[1]).write_text(block.text.replace(ADDRESS, self.endpoint))
            elif block.language == "sh":
                self.shown = self.type(block.text)
            elif block.language == "text":
                assert fits_in_any_order(block.text, self.shown), (
                    f"the page says:\n{block.text}\nshown is:\n{self.shown}"
                )
                self.compared += 1

    def type(self, script: str) -> str:
        """The output of a script, which has to succeed."""
        done = subprocess.run(
            ["sh", "-ec", script.replace("MESSAGE_ID", self.message_id)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            cwd=self.folder,
            env=environment(self.endpoint),
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        if self.message_id == "MESSAGE_ID" and (found := MESSAGE_ID.search(done.stdout)):
            self.message_id = found[0]
        return done.stdout


def environment(endpoint: str, home: Path | None = None) -> dict[str, str]:
    """Where `python` and `popmq` are this checkout's, and find the server. home: of programs that write there."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("POPMQ_", "ROCKETMQ_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**inherited, "PATH": path, "ROCKETMQ_ENDPOINTS": endpoint, **({"HOME": str(home)} if home else {})}


def fits(told: str, shown: str) -> bool:
    """Whether the output is what the page tells; `…` stands for anything, and blanks may be more or fewer."""
    told, shown = (re.sub(" +", " ", text.strip()) for text in (told, shown))
    pattern = ".*".join(re.escape(part) for part in told.split("…"))
    return re.fullmatch(pattern, shown, re.DOTALL) is not None


def fits_in_any_order(told: str, shown: str) -> bool:
    """The same where messages without a message group are printed: which of them comes first is not promised."""
    return fits(told, shown) or sorted(told.strip().splitlines()) == sorted(shown.strip().splitlines())
