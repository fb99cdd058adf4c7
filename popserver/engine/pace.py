"""When a group commit leaves: at once, or a moment later with those who are about to come.

A commit costs a disk flush and a dozen hand-overs between threads, whatever it carries. Callers who were answered
together come again together, so after a batch of several the next one gathers for as long as the event loop needs to
take as many in again. A caller who is alone never waits: nobody came with it.
"""

from __future__ import annotations

# The loop takes a call in and answers it in about 0.2 ms; twice that, so that a batch can grow to who is there.
PER_REQUEST_S = 0.000_4
PATIENCE_S_MAX = 0.008
# Each message of an answer is a frame of its own; so many take the loop as long as a call.
MESSAGES_PER_CALL = 8
# With this many requests a commit's own cost is small beside theirs.
ENOUGH = 48


class BatchDelay:
    """Remembers the batch before. `now_s` is any clock that only goes forward."""

    def __init__(self) -> None:
        self._leaves_at_s = float("-inf")
        self.gathers = False  # whether the batch before had several requests; if not, the next one leaves at once

    def wait_s(self, waiting: int, now_s: float) -> float:
        """How long a batch of `waiting` requests had better wait for more; 0 to leave at once."""
        return 0.0 if waiting >= ENOUGH else max(0.0, self._leaves_at_s - now_s)

    def left(self, count: int, now_s: float, *, answers: int = 0) -> None:
        """A batch of `count` requests left, to be answered with up to so many messages."""
        self.gathers = count > 1
        calls = count + answers / MESSAGES_PER_CALL
        patience_s = min(calls * PER_REQUEST_S, PATIENCE_S_MAX) if self.gathers else 0.0
        self._leaves_at_s = now_s + patience_s
