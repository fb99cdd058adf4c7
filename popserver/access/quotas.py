"""How many requests or messages one user may have per second, or one client if callers need not sign.

Each holder has a token bucket that fills at the rate and holds tokens for one second. A request may make the bucket
negative: a batch larger than the remaining tokens is accepted, and later requests wait. The average rate is exact.
"""

from __future__ import annotations

from collections import OrderedDict

from popserver.model.errors import TooManyRequests

HOLDERS_MAX = 10_000  # beyond that the holder that was idle longest is forgotten; it starts again with a full bucket


class Quota:
    """A rate of `what` ("messages", "requests") per second for each holder."""

    def __init__(self, per_second: int, what: str) -> None:
        self._per_second = per_second
        self._what = what
        self._buckets: OrderedDict[str, tuple[float, int]] = OrderedDict()  # (balance, as of)

    def take(self, holder: str, count: int, now_ms: int) -> None:
        """Raise `TooManyRequests`, with the time to wait, if the bucket is empty."""
        balance = self._balance(holder, now_ms)
        if balance <= 0:
            wait_ms = int(-balance * 1_000 / self._per_second) + 1
            raise TooManyRequests(
                f"{holder} has used up its {self._per_second} {self._what} per second; try again in {wait_ms} ms"
            )
        self._set(holder, balance - count, now_ms)

    def charge(self, holder: str, count: int, now_ms: int) -> None:
        """Take without refusing, down to minus one second's tokens."""
        self._set(holder, max(self._balance(holder, now_ms) - count, -float(self._per_second)), now_ms)

    def __len__(self) -> int:
        return len(self._buckets)

    def _balance(self, holder: str, now_ms: int) -> float:
        balance, as_of_ms = self._buckets.get(holder, (float(self._per_second), now_ms))
        return min(balance + (now_ms - as_of_ms) * self._per_second / 1_000, float(self._per_second))

    def _set(self, holder: str, balance: float, now_ms: int) -> None:
        self._buckets[holder] = (balance, now_ms)
        self._buckets.move_to_end(holder)
        if len(self._buckets) > HOLDERS_MAX:
            self._buckets.popitem(last=False)
