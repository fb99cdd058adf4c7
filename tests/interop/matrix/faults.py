"""Where a scenario does not pass, and why. A run expects these to fail, so it notices when a fault is mended."""

from __future__ import annotations

from typing import NamedTuple

POPMQ = ("SQLite", "Postgres", "two servers")


class Fault(NamedTuple):
    """A reason, and the cells that have it; `scenarios`, `languages` and `servers` are names with spaces between."""

    scenarios: str
    languages: str
    servers: tuple[str, ...]
    reason: str

    def is_at(self, scenario: str, language: str, server: str) -> bool:
        return scenario in self.scenarios.split() and language in self.languages.split() and server in self.servers


FAULTS: tuple[Fault, ...] = ()


def fault_at(scenario: str, language: str, server: str) -> int | None:
    """The index of the reason why this cell fails; None if it has to pass."""
    return next((index for index, each in enumerate(FAULTS) if each.is_at(scenario, language, server)), None)
