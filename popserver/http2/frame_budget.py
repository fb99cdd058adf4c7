"""How many frames a client may send that cost the server work and bring no call further."""

from __future__ import annotations

from popserver.front.turns import Rate
from popserver.http2.frames import ConnectionFailure, ErrorCode

# So many a second, and so many at once.
IDLE_FRAMES_PER_S = 1_000
IDLE_FRAMES_AT_ONCE = 2_000
# A client answers data with window updates: so many are allowed for each frame of data, however many come at once.
UPDATES_EACH = 4
UPDATES_MAX = 100_000


class FrameBudget:
    """Of one connection. A client that exceeds it loses the connection."""

    def __init__(self) -> None:
        self._idle = Rate(IDLE_FRAMES_PER_S, IDLE_FRAMES_AT_ONCE)
        self._updates = 0  # frames that counted as answers to data

    def count(self, now_s: float, weight: int = 1) -> None:
        """Count a frame that brings no call further. Raises `ConnectionFailure` if there were too many."""
        if self._idle.take(now_s, weight) < weight:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that bring no call further")

    def count_update(self, now_s: float, data_frames: int) -> None:
        """Count a frame that may answer data. The server has sent `data_frames` since the connection began."""
        allowed = UPDATES_EACH * data_frames
        self._updates = max(self._updates, allowed - UPDATES_MAX)
        if self._updates < allowed:
            self._updates += 1
        else:
            self.count(now_s)
