"""A shell with a server at its other end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import popserver
from popserver import EmbeddedBroker
from tests.cli.shell import Shell


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """Makes nothing on the way; its clock stands still until it is moved."""
    with popserver.embedded(manual_clock=True, auto_create=False) as running:
        yield running


@pytest.fixture
def shell(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(broker.endpoint, capsys, monkeypatch, broker)
