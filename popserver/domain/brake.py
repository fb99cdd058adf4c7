"""A brake on what the log says: what callers can cause again and again is told once in a while."""

from __future__ import annotations

from popserver.domain.retry import MINUTE_MS

AGAIN_MS = MINUTE_MS


class Brake:
    """Lets one line through a minute, and counts the others."""

    def __init__(self, again_ms: int = AGAIN_MS) -> None:
        self._again_ms = again_ms
        self._told_ms: int | None = None
        self._untold = 0

    def untold(self, now_ms: int) -> int | None:
        """How many lines were held back since the last one, where one may be told now; None where it is held back."""
        if self._told_ms is not None and now_ms - self._told_ms < self._again_ms:
            self._untold += 1
            return None
        untold, self._untold, self._told_ms = self._untold, 0, now_ms
        return untold
