"""The counts of cancelled flights from Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Cancellations(NamedTuple):
    """`counts` by (carrier, origin); the Parquet files have `written` dead letters."""

    counts: dict[tuple[str, str], int]
    written: int

    @classmethod
    def of(cls, report: dict[str, Any]) -> Cancellations:
        return cls({(carrier, origin): count for carrier, origin, count in report["counts"]}, report["written"])

    @property
    def origins(self) -> Sequence[str]:
        return sorted({origin for _, origin in self.counts})

    @property
    def carriers(self) -> Sequence[str]:
        """Most cancellations first."""
        return sorted({carrier for carrier, _ in self.counts}, key=self.of_carrier, reverse=True)

    def of_carrier(self, carrier: str) -> int:
        return sum(count for (each, _), count in self.counts.items() if each == carrier)
