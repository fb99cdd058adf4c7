"""How much a look may do before it lets others in: offsets it passes over, and messages it asks a SQL filter about.

What a filter costs is worked out from the filter and the messages (`SqlFilter.cost`), not measured: the same look ends
at the same message everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from popserver.domain.filtering import SqlFilter
from popserver.store.filter_look import Unjudged

# How far one look goes in one queue.
WINDOW_OFFSETS = 1_000
# In units of about 0.1 µs, over all queues.
JUDGED_UNITS = 50_000
# After so many units the thread sleeps: only then is the interpreter given to a thread that waits for it. To ask for it
# takes 5 ms each time otherwise, and a request needs it often.
_BREATH_UNITS = 10_000
_BREATH_S = 0.000_1
# Before it is known how large messages are, it fetches so many at most, and each time at most so many times more.
_FIRST_MESSAGES = 256
_GROWTH = 4


class Work:
    """What one look may do, or several one after the other, and what they have learned of the messages' size."""

    def __init__(self, units: int = JUDGED_UNITS, *, messages: int = WINDOW_OFFSETS) -> None:
        """`messages`: at most so many are fetched at once."""
        self._units = units
        self._messages_max = messages
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
        count = max(1, min(self._messages_max, self._asked, self.left // each))
        self._asked = min(self._messages_max, self._asked * _GROWTH)
        return count

    def judge(self, wanted: SqlFilter, found: Unjudged) -> Iterator[tuple[int, bool]]:
        """Ask about the messages one by one, until the work is done, and always about one: its key, and the answer."""
        cost = wanted.cost_of_all(len(found.rows), found.characters)
        known = cost <= self.left
        if known and found.rows:
            # The usual case: nothing need be counted. A caller that stops early has paid for all.
            self.left -= cost
            self.unit_each = cost // len(found.rows)
        for judged, (key, tag, properties) in enumerate(found.rows, start=1):
            yield key, wanted.matches(tag, properties)
            if not known:
                each = wanted.cost(tag, properties)
                self.left -= each
                self.unit_each += (each - self.unit_each) // judged
                if self.is_done:
                    return
            self._breathe(self.unit_each)

    def spend(self, units: int) -> None:
        """So much was done."""
        self.left -= units
        self._breathe(units)

    def _breathe(self, units: int) -> None:
        self._breath -= units
        if self._breath <= 0:
            time.sleep(_BREATH_S)
            self._breath = _BREATH_UNITS
