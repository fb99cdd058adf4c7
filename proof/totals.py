"""What the runs of the harnesses have counted so far: one file per harness, `proof/totals/<harness>.json`.

A harness adds its counts when a run ends, so a figure of `docs/promises.md` is the sum of runs that anybody can repeat.
Runs of planted faults are never counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

FOLDER = Path(__file__).parent / "totals"


def read_totals(harness: str, folder: Path = FOLDER) -> dict[str, int]:
    """The counts of a harness, by what was counted; empty before its first run."""
    path = folder / f"{harness}.json"
    if not path.exists():
        return {}
    counts: dict[str, int] = json.loads(path.read_text())["counts"]
    return counts


def add_totals(harness: str, counts: Mapping[str, int], folder: Path = FOLDER) -> dict[str, int]:
    """Add the counts of a run that has ended, and return the sums. A run names `violations`, also when it has none."""
    if "violations" not in counts:
        raise ValueError(f"The counts of {harness} name no violations; a run without any says violations=0.")
    sums = read_totals(harness, folder)
    for name, count in counts.items():
        sums[name] = sums.get(name, 0) + count
    document = {"counts": dict(sorted(sums.items())), "until": datetime.now(UTC).date().isoformat()}
    folder.mkdir(exist_ok=True)
    (folder / f"{harness}.json").write_text(json.dumps(document, indent=2) + "\n")
    return sums
