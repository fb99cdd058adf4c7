"""How much a look may do before it lets others in: offsets it passes over, and messages it asks a SQL filter about.

What a filter costs is worked out from the filter and the messages (`SqlFilter.cost`), not measured: the same look ends
at the same message everywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from popserver.domain.filtering import SqlFilter
from popserver.store.filter_look import Judged

# How far one look goes in one queue.
WINDOW_OFFSETS = 1_000
# So many messages a SQL filter is asked about at once.
_MESSAGES_MAX = 4_000
# In units of about 0.1 µs, over all queues.
JUDGED_UNITS = 100_000
# After so many units the thread sleeps: only then is the interpreter given to a thread that waits for it. To ask for it
# takes 5 ms each time otherwise, and a request needs it often.
_BREATH_UNITS = 30_000
_BREATH_S = 0.000_1
_NEVER = threading.Event()
# Before it is known how large messages are, a look fetches so many; the next one at most so many times more.
_FIRST_MESSAGES = 256
_GROWTH = 4


class Work:
    """What one look may do, or several one after the other, and what they have learned of the messages' size."""

    def __init__(self, units: int = JUDGED_UNITS) -> None:
        self._units = units
        self._asked = _FIRST_MESSAGES
        self._breath = _BREATH_UNITS
        self.left = units
        self.unit_each = 0  # what the last messages cost on average

    def again(self) -> None:
        """Begin the next look."""
        self.left = self._units

    @property
    def is_done(self) -> bool:
        return self.left <= 0

    @property
    def used(self) -> int:
        """What was done of this look."""
        return self._units - self.left

    def messages(self, wanted: SqlFilter) -> int:
        """How many messages are fetched next: no more than can be judged, as far as is known, and at least one."""
        each = max(self.unit_each, wanted.cost_of_all(1, 0))
        # With room to spare: to count what each message costs is a work of its own.
        count = max(1, min(_MESSAGES_MAX, self._asked, self.left * 3 // 4 // each))
        self._asked = min(_MESSAGES_MAX, self._asked * _GROWTH)
        return count

    def judge(self, wanted: SqlFilter, rows: Sequence[Judged], characters: int) -> tuple[list[int], int]:
        """The keys of those that the filter wants, and how many it was asked about, from the first on.

        That is all of them, or as many as the work allows, and always one. Their tags and properties have at most
        `characters` characters together.
        """
        cost = wanted.cost_of_all(len(rows), characters)
        if cost > self.left:
            return self._judge_counting(wanted, rows)
        # The usual case: nothing need be counted.
        self.left -= cost
        self.unit_each = cost // max(1, len(rows))
        step = max(1, _BREATH_UNITS // max(1, self.unit_each))
        keys = wanted.keys_of(rows[:step])
        for start in range(step, len(rows), step):
            _NEVER.wait(_BREATH_S)
            keys += wanted.keys_of(rows[start : start + step])
        return keys, len(rows)

    def _judge_counting(self, wanted: SqlFilter, rows: Sequence[Judged]) -> tuple[list[int], int]:
        keys: list[int] = []
        costs: list[int] = []
        for row in rows:
            keys += wanted.keys_of((row,))
            costs.append(wanted.cost(row[1], row[2]))
            self.spend(costs[-1])
            if self.is_done:
                break
        self.unit_each = sum(costs) // len(costs)
        return keys, len(costs)

    def spend(self, units: int) -> None:
        """So much was done."""
        self.left -= units
        self._breathe(units)

    def _breathe(self, units: int) -> None:
        self._breath -= units
        if self._breath <= 0:
            _NEVER.wait(_BREATH_S)
            self._breath = _BREATH_UNITS
