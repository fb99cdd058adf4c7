"""The filters of receives and pulls that are under way. Those that are alike are kept once, and count once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from popserver.filters import Filter
from popserver.model.budget import Budget


class Filters:
    """What the filters of all callers together take up."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._users: dict[Filter, int] = {}

    @contextmanager
    def held(self, wanted: Filter) -> Iterator[None]:
        """It is kept as long as the context. Raises `TooManyRequests` where there is no room for it."""
        if wanted.wants_all:
            yield
            return
        size = wanted.memory
        users = self._users.get(wanted, 0)
        if not users and not self._budget.take(size):
            raise self._budget.refusal(f"a filter of {size} bytes")
        self._users[wanted] = users + 1
        try:
            yield
        finally:
            self._users[wanted] -= 1
            if not self._users[wanted]:
                del self._users[wanted]
                self._budget.give_back(size)
