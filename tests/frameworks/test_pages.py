"""The pages of docs/frameworks: their programs run as a reader runs them."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from popserver import EmbeddedBroker
from tests.frameworks.programs import Program
from tests.support.documentation_pages import Block, Reader, blocks, fits_in_any_order
from tests.support.waiting import soon

PAGES = Path(__file__).parents[2] / "docs" / "frameworks"
# Commands that go on until they are stopped, and what they say when they are ready.
READY = {
    "taskiq": "Listening started",
    "uvicorn": "Uvicorn running on ",
    "python kitchen.py": "the kitchen opens",
}
PORT = "8000"


class Page:
    """Someone who follows a page. What goes on runs until the page's end."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.reader = Reader(folder, endpoint)
        self.running: list[Program] = []
        self._stack = ExitStack()

    def close(self) -> None:
        self._stack.close()

    def follow(self, page: Sequence[Block]) -> None:
        for block in page:
            service = next((said for command, said in READY.items() if block.text.startswith(command)), None)
            if block.language == "sh" and service is not None:
                self.start(block.text.split(), service)
            elif block.language == "sql":
                with closing(sqlite3.connect(self.reader.folder / "popmq.db")) as database:
                    assert database.execute(block.text).fetchall()
            elif block.language == "text" and not fits_in_any_order(block.text, self.reader.shown):
                self.until_all_is_said(block.text.splitlines())
            elif not block.text.startswith("pip"):
                self.reader.follow([block])

    def start(self, command: list[str], ready: str) -> None:
        name = f"program-{len(self.running)}"
        self.running.append(self._stack.enter_context(Program(self.reader.folder, name, command, self.reader.endpoint)))
        self.running[-1].until_it_says(ready)

    def until_all_is_said(self, lines: Sequence[str]) -> None:
        """By a program that goes on. Which of them comes first is not promised."""
        soon(lambda: set(lines) <= set(self.running[-1].log.read_text().splitlines()), within_s=60)


def a_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("name", ["taskiq", "fastapi", "faststream"])
def test_the_programs_of_a_page(name: str, tmp_path: Path, stored: EmbeddedBroker) -> None:
    port = str(a_free_port())
    page = [block._replace(text=block.text.replace(PORT, port)) for block in blocks(PAGES / f"{name}.md")]
    with closing(Page(tmp_path, stored.endpoint)) as followed:
        followed.follow(page)
        for program in followed.running:
            program.terminate()
            assert program.ended() in {0, -15}  # uvicorn ends by the signal that it got
