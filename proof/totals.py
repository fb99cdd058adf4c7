"""What the runs of the harnesses have counted so far: one file per harness, `proof/totals/<harness>.json`.

A harness adds its counts when a run ends, so a figure of `docs/promises.md` is the sum of runs that anybody can repeat.
Counts that describe the code as it is, such as a mutation score, are not added: those of the last run replace the
earlier ones, part by part. Runs of planted faults are never counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

FOLDER = Path(__file__).parent / "totals"
# The counts of one kind of fault have names that begin with this; so have those of a setting, and of settings together.
FAULT, SETTING, COMBINATION = "fault: ", "setting: ", "combination: "


def read_totals(harness: str, folder: Path = FOLDER) -> dict[str, int]:
    """The counts of a harness, by what was counted; empty before its first run."""
    path = folder / f"{harness}.json"
    if not path.exists():
        return {}
    counts: dict[str, int] = json.loads(path.read_text())["counts"]
    return counts


def add_totals(harness: str, counts: Mapping[str, int], folder: Path = FOLDER) -> dict[str, int]:
    """Add the counts of a run that has ended, and return the sums. A run names `violations`, also when it has none."""
    _check_violations(harness, counts)
    sums = _sums([read_totals(harness, folder), counts])
    _write(harness, {"counts": sums}, folder)
    return sums


def replace_totals(harness: str, part: str, counts: Mapping[str, int], folder: Path = FOLDER) -> dict[str, int]:
    """Replace the counts of one part by those of a run that has ended, and return the sums of all parts."""
    _check_violations(harness, counts)
    path = folder / f"{harness}.json"
    parts: dict[str, Mapping[str, int]] = json.loads(path.read_text()).get("parts", {}) if path.exists() else {}
    parts[part] = counts
    sums = _sums(parts.values())
    _write(
        harness, {"counts": sums, "parts": {name: dict(sorted(parts[name].items())) for name in sorted(parts)}}, folder
    )
    return sums


def _check_violations(harness: str, counts: Mapping[str, int]) -> None:
    if "violations" not in counts:
        raise ValueError(f"The counts of {harness} name no violations; a run without any says violations=0.")


def _sums(many: Iterable[Mapping[str, int]]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for counts in many:
        sums.update(counts)
    return dict(sorted(sums.items()))


def _write(harness: str, document: Mapping[str, object], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    dated = {**document, "until": datetime.now(UTC).date().isoformat()}
    (folder / f"{harness}.json").write_text(json.dumps(dated, indent=2) + "\n")
