"""So many a second, and so many at once."""

from __future__ import annotations


class Rate:
    """A token bucket; it is full at first."""

    def __init__(self, per_s: float, at_once: int) -> None:
        self._per_s = per_s
        self._at_once = at_once
        self._balance = float(at_once)
        self._as_of_s = 0.0

    def take(self, now_s: float, wanted: int = 1) -> int:
        """How many of the wanted may go on now; they are taken."""
        self._balance = min(self._at_once, self._balance + (now_s - self._as_of_s) * self._per_s)
        self._as_of_s = now_s
        taken = min(wanted, int(self._balance))
        self._balance -= taken
        return taken
