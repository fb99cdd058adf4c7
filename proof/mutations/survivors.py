"""Mutants that survive, hang or die, and why that is right: `survivors.toml`.

An entry has the place (path, or path:function), the reason, and the changes (lines before → lines after).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from proof.mutations.mutants import Mutant

EXPLAINED = Path(__file__).parent / "survivors.toml"


class Survivors(NamedTuple):
    """What is known about mutants that survived."""

    explained: list[Mutant]
    unexplained: list[Mutant]
    stale: list[tuple[str, str]]  # place and change of explanations whose mutant is killed, or does not exist


def read_explained(path: Path = EXPLAINED) -> dict[tuple[str, str], str]:
    """The reasons, by place and change. Raises `ValueError` for an entry without a reason."""
    reasons: dict[tuple[str, str], str] = {}
    entries: Sequence[Mapping[str, object]] = tomllib.loads(path.read_text()).get("survivor", [])
    for entry in entries:
        place, why, changes = entry.get("place"), entry.get("why"), entry.get("changes")
        if not isinstance(place, str) or not isinstance(why, str) or not why.strip() or not isinstance(changes, list):
            raise ValueError(f"{path.name}: the entry of {place} needs a place, why, and changes.")
        reasons |= {(place, change): why for change in changes}
    return reasons


def divide(mutants: Iterable[Mutant], survived: Iterable[Mutant], reasons: Mapping[tuple[str, str], str]) -> Survivors:
    """Divide the survivors of some files by whether they are explained."""
    known = [*survived]
    explained = [each for each in known if (each.place, each.change) in reasons]
    unexplained = [each for each in known if (each.place, each.change) not in reasons]
    paths = {each.path for each in mutants}
    alive = {(each.place, each.change) for each in explained}
    stale = [entry for entry in reasons if entry[0].partition(":")[0] in paths and entry not in alive]
    return Survivors(explained, unexplained, stale)
