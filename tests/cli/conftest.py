"""A shell with a server at its other end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import popserver
from popserver import EmbeddedBroker, logs
from tests.support.builders import START
from tests.support.shell import Shell


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """What `popmq serve` sets up here writes to a stream that ends with the test."""
    yield
    logs.configure("info", "console")


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """Makes nothing on the way; its clock stands still until it is moved."""
    with popserver.embedded(manual_clock=START, auto_create=False) as running:
        yield running


@pytest.fixture
def shell(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(broker.endpoint, capsys, monkeypatch, broker)
