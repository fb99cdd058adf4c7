"""Where the log of a server goes that runs inside another program."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest
import structlog

from popserver import app


@pytest.fixture
def unconfigured() -> Iterator[None]:
    before = structlog.get_config() if structlog.is_configured() else None
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


@pytest.mark.usefixtures("unconfigured")
def test_it_follows_the_standard_error_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest replaces it for each test, and closes the one before."""
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    app.configure("info", "console")
    structlog.get_logger().warning("one")
    said = first.getvalue()
    first.close()
    monkeypatch.setattr(sys, "stderr", second)
    structlog.get_logger().warning("two")
    assert "one" in said
    assert "two" in second.getvalue()
