"""What every test of metrics needs: numbers that are read anew."""

from __future__ import annotations

import pytest

from popserver.maintenance import patrol
from popserver.metrics import exporter as exporters
from popserver.metrics import flow


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scrape reads anew, and waits for it."""
    monkeypatch.setattr(exporters, "REMEMBERED_S", -1.0)
    monkeypatch.setattr(flow, "pause_s", lambda _took_s: 0.0)
    monkeypatch.setattr(flow, "WAIT_S", 30.0)
    monkeypatch.setattr(patrol, "WAIT_S", 30.0)
