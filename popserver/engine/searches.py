"""From when on a search by time has to look: what the searches of this server have seen.

The index of what becomes due, or READY again, is in the order of time. On Postgres a user's open transaction keeps the
entries of everything that was there since it began, and each search would read them from the first one on. So a search
begins at the first row that the last one saw, or some time before that search: whatever is stored later is due later.

What is stored much later than it is due (a server was stopped) must be told: `forget`. And now and then one search
looks at everything, so a mistake is no more than a delay.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import ClassVar, Generic, NamedTuple, TypeVar

from popserver.engine import meters

Search = TypeVar("Search", bound=Hashable)

# A look at everything costs as much as the transaction beside it is old. So they are rare, unless one was of use; and
# after one of half a second or more, which no busy machine explains, they take a hundredth of the time.
LOOK_AGAIN_MS_MIN = 1_000
LOOK_AGAIN_MS_MAX = 16_000
LOOK_AGAIN_MS_LONGEST = 300_000
LONG_MS = 500
PAUSE_FACTOR = 100  # times what a long look took
SEARCHES_MAX = 10_000  # beyond that all are forgotten


class _Seen(NamedTuple):
    from_ms: int
    at_ms: int  # of the search
    looked_ms: int  # of the last one that looked at everything
    pause_ms: int  # until the next one does


class SearchedFrom(Generic[Search]):
    """What the writer remembers of one kind of searches (`Transaction.remembered`).

    `slack_ms`: for transactions of other servers, which take less, and whose clocks are nearly the same.
    """

    slack_ms: ClassVar[int]

    def __init__(self) -> None:
        self._seen: dict[Search, _Seen] = {}
        self._began_s: dict[Search, float] = {}  # the looks at everything that are not done

    def of(self, search: Search, now_ms: int) -> int:
        """The time from which on a search has to look; 0: it looks at everything."""
        seen = self._seen.get(search)
        is_known = seen is not None and seen.at_ms <= now_ms < seen.looked_ms + seen.pause_ms
        if seen is not None and is_known:
            return seen.from_ms
        self._began_s[search] = meters.now_s()
        return 0

    def saw(self, search: Search, first_ms: int | None, now_ms: int) -> Callable[[], None]:
        """The search, which has just ended, saw this first row; None: there is none. Returns what to call after the
        COMMIT."""
        began_s = self._began_s.pop(search, None)
        took_ms = None if began_s is None else round(1_000 * (meters.now_s() - began_s))
        latest_ms = now_ms - self.slack_ms
        found_ms = latest_ms if first_ms is None else min(first_ms, latest_ms)
        return partial(self._remember, search, found_ms, now_ms, took_ms)

    def _remember(self, search: Search, found_ms: int, now_ms: int, took_ms: int | None) -> None:
        """`took_ms`: how long it took, if it looked at everything because it was time to do so."""
        before = self._seen.get(search)
        if took_ms is None:
            if before is not None:  # else it was forgotten meanwhile
                self._seen[search] = before._replace(from_ms=found_ms, at_ms=now_ms)
            return
        if len(self._seen) >= SEARCHES_MAX:
            self._seen.clear()
        pause_ms = LOOK_AGAIN_MS_MIN
        if before is not None and found_ms >= before.from_ms:
            pause_ms = min(2 * before.pause_ms, LOOK_AGAIN_MS_MAX)
        if took_ms >= LONG_MS:
            pause_ms = min(PAUSE_FACTOR * took_ms, LOOK_AGAIN_MS_LONGEST)
        self._seen[search] = _Seen(found_ms, now_ms, now_ms, pause_ms)

    def forget(self, search: Search) -> None:
        """A row was stored later than it was due."""
        self._seen.pop(search, None)
