"""A limit that callers share, and how much of it each of them may use. Not thread-safe."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Generic, TypeVar


@dataclass(slots=True, eq=False)
class Count:
    """A limit and its current use."""

    limit: int
    used: int = 0
    peak: int = 0
    refused: int = 0  # how often there was no room

    def take(self, amount: int = 1) -> bool:
        """Use `amount` until `give_back`. Returns False, and counts a refusal, if there is no room."""
        if self.used + amount > self.limit:
            self.refused += 1
            return False
        self.used += amount
        self.peak = max(self.peak, self.used)
        return True

    def give_back(self, amount: int = 1) -> None:
        """Free an amount that was taken."""
        self.used -= amount

    def add(self, amount: int) -> None:
        """Use `amount` whether there is room or not, because it is there already."""
        self.used += amount
        self.peak = max(self.peak, self.used)


Whole = TypeVar("Whole", bound=Count)


class Shares(Generic[Whole]):
    """A budget whose holders may each use only a share of it.

    `each`: a budget for the share of one holder. It shows the highest use of any holder, and counts the refusals of
    holders that have their whole share. Without it these refusals count in `budget`.
    """

    def __init__(self, budget: Whole, share: int, each: Count | None = None) -> None:
        self.budget = budget
        self.share = share
        self.each = each
        self._held: dict[str, int] = {}
        self._holders: Counter[int] = Counter()  # the number of holders for each use; gives the highest use quickly

    def has_all(self, holder: str) -> bool:
        """Whether the holder has its whole share."""
        return self._held.get(holder, 0) >= self.share

    def take(self, holder: str, amount: int = 1) -> bool:
        """Use so much more for this holder. Returns False, and counts a refusal, if there is no room."""
        held = self._held.get(holder, 0)
        if held + amount > self.share:
            (self.each or self.budget).refused += 1
            return False
        if not self.budget.take(amount):
            return False
        self._hold(holder, held + amount)
        return True

    def give_back(self, holder: str, amount: int = 1) -> None:
        """Free what the holder took."""
        self.budget.give_back(amount)
        self._hold(holder, self._held.get(holder, 0) - amount)

    def _hold(self, holder: str, now: int) -> None:
        before = self._held.pop(holder, 0)
        if now:
            self._held[holder] = now
        if self.each is None:
            return
        self._holders[before] -= 1
        self._holders[now] += 1
        if not self._holders[before]:
            del self._holders[before]
        if now > self.each.used or self.each.used not in self._holders:
            self.each.used = max(0, *self._holders)
            self.each.peak = max(self.each.peak, now)
