"""The figures of `popmq size` are measured and written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import run
from benchmarks.cases import TOGETHER
from benchmarks.machine import Cores
from benchmarks.plan import Plan
from benchmarks.sizes import pages
from popserver.sizing.load import Load
from popserver.sizing.need import need
from popserver.sizing.units import FIGURES, measured

TINY = Plan(
    rounds=1,
    seconds=0.5,
    warm_up=0.2,
    stock=8_000,
    idle_seconds=0.3,
    sizes_stored=4_000,
    sizes_groups=20,
    sizes_message_groups=4_000,
    sizes_polls=40,
    sizes_polls_over_workers=40,
    sizes_workers=2,
    stored_sizes=(16_000,),  # half of them are removed, and 200 receives of 32 need the others
)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_sizes_are_measured_and_their_figures_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(TOGETHER["sizes"], TINY, ["sqlite", "postgres"], tmp_path / "work", Cores(pin=False))
    written = tmp_path / "bench.json"
    written.write_text(json.dumps(result))
    monkeypatch.setattr(pages, "FIGURES", tmp_path / "figures.json")
    monkeypatch.setattr("popserver.sizing.units.FIGURES", tmp_path / "figures.json")
    monkeypatch.setattr(pages, "PAGE", tmp_path / "sizing.md")
    (tmp_path / "sizing.md").write_text(f"# Sizing\n{pages.BEGIN}REPLACED{pages.END}end\n")
    pages.main([str(written)])
    page = (tmp_path / "sizing.md").read_text()
    assert "REPLACED" not in page
    assert "bytes on the disk, a message of 64 bytes" in page
    assert "sqlite, 16,000 stored" in page
    figures = measured()
    assert [each.reached["idle_polls"] for each in figures.of.values()] == [40, 40]
    assert [each.reached["workers"] for each in figures.of.values()] == [1, 2]
    for name, units in figures.of.items():
        found = need(Load(rate=10), units, is_sqlite=name == "sqlite")
        assert found.disk_bytes > found.stored * 1_024
        assert found.fits


def test_a_page_without_a_place_for_the_figures_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "FIGURES", tmp_path / "figures.json")
    monkeypatch.setattr(pages, "PAGE", tmp_path / "sizing.md")
    (tmp_path / "sizing.md").write_text("# Sizing\n")
    each: dict[str, float] = {unit: 1.0 for unit, _ in pages.UNITS} | {"groups": 1, "polls": 1}
    run_of = {
        "at": "2026-11-23T10:00:00+00:00",
        "environment": {"cores": 2, "system": "Linux", "python": "3.11"},
        "plan": {"sizes_stored": 1, "sizes_message_groups": 1},
        "cases": {"sizes_units": {"variants": {name: {"rounds": [each]} for name in ("sqlite", "postgres")}}},
    }
    (tmp_path / "bench.json").write_text(json.dumps(run_of))
    with pytest.raises(ValueError, match="has no place for the figures"):
        pages.main([str(tmp_path / "bench.json")])


def test_the_page_has_the_figures_of_the_package() -> None:
    document = json.loads(FIGURES.read_text())
    assert pages.table_of_units(document) in pages.PAGE.read_text(), "run python -m benchmarks.sizes.pages"
