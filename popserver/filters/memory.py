"""Counts the memory for filters of running receives and pulls. Equal filters are stored once and count once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from popserver.filters import Filter
from popserver.model.budget import Budget


class Filters:
    """The filters of all callers, and the memory that they use."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._users: dict[Filter, int] = {}

    @contextmanager
    def held(self, wanted: Filter) -> Iterator[None]:
        """Count the filter during the context. Raises `TooManyRequests` if it does not fit into the budget."""
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
