"""A server whose database does not answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection

from popserver.administration import disk, readiness


@contextmanager
def hanging_database(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Readiness gets no answer from the database within the block."""
    let_go = threading.Event()

    def hang(_conn: Connection, _file: Path | None) -> None:
        assert let_go.wait(30)

    with monkeypatch.context() as patch:
        patch.setattr(readiness, "ANSWER_MS", 50)
        patch.setattr(readiness, "REMEMBERED_MS", 0)
        patch.setattr(disk, "check", hang)
        yield
        let_go.set()
