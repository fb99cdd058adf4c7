"""Lower time bounds for index scans, from what the searches of this server have seen.

The index of what becomes due, or READY again, is in the order of time. On Postgres a user's open transaction keeps the
entries of everything that was there since it began, and each search would read them from the first one on. So a search
begins at the first row that the last one saw, or some time before that search: whatever is stored later is due later.

Now and then one search looks back two minutes, or scans everything, so a mistake is no more than a delay.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import ClassVar, Generic, NamedTuple, TypeVar

from popserver.engine import meters

Search = TypeVar("Search", bound=Hashable)

# Lookbacks are rare, unless the last one found something. The cost of a full scan grows with the age of the transaction
# beside it, so full scans take a three-thousandth of the time; the others look back as far as a mistake is probable.
LOOKBACK_MS = 120_000
INTERVAL_MS_MIN = 1_000  # until the next lookback
INTERVAL_MS_MAX = 16_000
PAUSE_FACTOR = 3_000  # times what the last full scan took
PAUSE_MS_MAX = 300_000
SEARCHES_MAX = 10_000  # beyond that all are forgotten


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
    """What the writer remembers of one kind of searches (`Transaction.remembered`).

    `slack_ms`: for transactions of other servers, which take less, and whose clocks are nearly the same.
    """

    slack_ms: ClassVar[int]

    def __init__(self) -> None:
        self._seen: dict[Search, _Seen] = {}
        self._lookbacks: dict[Search, _Lookback] = {}  # those that are not done

    def of(self, search: Search, now_ms: int) -> int:
        """The lower time bound of a search; 0: it scans everything."""
        seen = self._seen.get(search)
        is_known = seen is not None and seen.at_ms <= now_ms < seen.last_full_scan_ms + seen.pause_ms
        if seen is not None and is_known and now_ms < seen.last_lookback_ms + seen.lookback_interval_ms:
            return seen.from_ms
        self._lookbacks[search] = _Lookback(not is_known, meters.now_s())
        return min(seen.from_ms, now_ms - LOOKBACK_MS) if seen is not None and is_known else 0

    def saw(self, search: Search, first_ms: int | None, now_ms: int) -> Callable[[], None]:
        """The search, which has just ended, saw this first row; None: there is none. Returns what to call after the
        COMMIT."""
        lookback = self._lookbacks.pop(search, None)
        took_ms = 0 if lookback is None else round(1_000 * (meters.now_s() - lookback.began_s))
        latest_ms = now_ms - self.slack_ms
        found_ms = latest_ms if first_ms is None else min(first_ms, latest_ms)
        if lookback is None:
            return partial(self._remember, search, found_ms, now_ms)
        return partial(self._remember_lookback, search, found_ms, now_ms, took_ms if lookback.is_full_scan else None)

    def _remember(self, search: Search, found_ms: int, now_ms: int) -> None:
        before = self._seen.get(search)
        if before is not None:  # else it was forgotten meanwhile
            self._seen[search] = before._replace(from_ms=found_ms, at_ms=now_ms)

    def _remember_lookback(self, search: Search, found_ms: int, now_ms: int, took_ms: int | None) -> None:
        """`took_ms`: of a full scan; None: it was a lookback."""
        before = self._seen.get(search)
        lookback_interval_ms = INTERVAL_MS_MIN
        if before is not None and found_ms >= before.from_ms:
            lookback_interval_ms = min(2 * before.lookback_interval_ms, INTERVAL_MS_MAX)
        if took_ms is not None:
            last_full_scan_ms, pause_ms = now_ms, min(max(PAUSE_FACTOR * took_ms, lookback_interval_ms), PAUSE_MS_MAX)
        elif before is not None:
            last_full_scan_ms, pause_ms = before.last_full_scan_ms, before.pause_ms
        else:
            return  # it was forgotten meanwhile
        if len(self._seen) >= SEARCHES_MAX:
            self._seen.clear()
        self._seen[search] = _Seen(found_ms, now_ms, now_ms, lookback_interval_ms, last_full_scan_ms, pause_ms)
