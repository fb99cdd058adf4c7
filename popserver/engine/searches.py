"""Lower time bounds for index scans, from the results of this server's previous searches.

The indexes of due rows and of READY rows are in the order of time. While a user's transaction is open on Postgres, an
index keeps the entries of all rows that have changed since it began, and each search would read these entries. So a
search begins at the first row that the previous search found, or shortly before the time of that search: rows that are
stored later have later times.

Sometimes a search begins two minutes earlier (a lookback), or scans everything. So a row that the bound has left out is
only late.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import ClassVar, Generic, NamedTuple, TypeVar

from popserver.engine import meters

Search = TypeVar("Search", bound=Hashable)

# Lookbacks are rare, unless the last one found a row. The cost of a full scan grows with the age of the user's
# transaction, so the pause after a full scan is `PAUSE_FACTOR` times its duration.
LOOKBACK_MS = 120_000
INTERVAL_MS_MIN = 1_000  # until the next lookback
INTERVAL_MS_MAX = 16_000
PAUSE_FACTOR = 3_000  # times the duration of the last full scan
PAUSE_MS_MAX = 300_000
SEARCHES_MAX = 10_000  # beyond that the bounds of all searches are dropped


class _Seen(NamedTuple):
    from_ms: int
    at_ms: int  # of the search
    last_lookback_ms: int
    lookback_interval_ms: int  # until the next lookback
    last_full_scan_ms: int
    pause_ms: int  # until the next full scan


class _Lookback(NamedTuple):
    is_full_scan: bool
    began_s: float


class SearchedFrom(Generic[Search]):
    """The lower bounds of one kind of searches, which the writer remembers (`Transaction.remembered`).

    `slack_ms`: a row of another server may be stored with a time that is so long ago. Transactions take less than that,
    and clocks of servers differ by less.
    """

    slack_ms: ClassVar[int]

    def __init__(self) -> None:
        self._seen: dict[Search, _Seen] = {}
        self._lookbacks: dict[Search, _Lookback] = {}  # of searches that have not ended

    def of(self, search: Search, now_ms: int) -> int:
        """The lower time bound of a search; 0: it scans everything."""
        seen = self._seen.get(search)
        is_known = seen is not None and seen.at_ms <= now_ms < seen.last_full_scan_ms + seen.pause_ms
        if seen is not None and is_known and now_ms < seen.last_lookback_ms + seen.lookback_interval_ms:
            return seen.from_ms
        self._lookbacks[search] = _Lookback(not is_known, meters.now_s())
        return min(seen.from_ms, now_ms - LOOKBACK_MS) if seen is not None and is_known else 0

    def saw(self, search: Search, first_ms: int | None, now_ms: int) -> Callable[[], None]:
        """The first row that a search found has the time `first_ms`; None: it found none. Returns the function that
        remembers this, to call after the COMMIT."""
        lookback = self._lookbacks.pop(search, None)
        took_ms = 0 if lookback is None else round(1_000 * (meters.now_s() - lookback.began_s))
        latest_ms = now_ms - self.slack_ms
        found_ms = latest_ms if first_ms is None else min(first_ms, latest_ms)
        if lookback is None:
            return partial(self._remember, search, found_ms, now_ms)
        return partial(self._remember_lookback, search, found_ms, now_ms, took_ms if lookback.is_full_scan else None)

    def _remember(self, search: Search, found_ms: int, now_ms: int) -> None:
        before = self._seen.get(search)
        if before is not None:  # else `_seen` was cleared meanwhile
            self._seen[search] = before._replace(from_ms=found_ms, at_ms=now_ms)

    def _remember_lookback(self, search: Search, found_ms: int, now_ms: int, took_ms: int | None) -> None:
        """`took_ms`: the duration of a full scan; None after a lookback."""
        before = self._seen.get(search)
        lookback_interval_ms = INTERVAL_MS_MIN
        if before is not None and found_ms >= before.from_ms:
            lookback_interval_ms = min(2 * before.lookback_interval_ms, INTERVAL_MS_MAX)
        if took_ms is not None:
            last_full_scan_ms, pause_ms = now_ms, min(max(PAUSE_FACTOR * took_ms, lookback_interval_ms), PAUSE_MS_MAX)
        elif before is not None:
            last_full_scan_ms, pause_ms = before.last_full_scan_ms, before.pause_ms
        else:
            return  # `_seen` was cleared meanwhile
        if len(self._seen) >= SEARCHES_MAX:
            self._seen.clear()
        self._seen[search] = _Seen(found_ms, now_ms, now_ms, lookback_interval_ms, last_full_scan_ms, pause_ms)
