"""How many messages an iteration receives at a time."""

from __future__ import annotations

from typing import Final

MORE_AFTER: Final = 8  # receives in a row of which nothing was given back


class BatchSize:
    """As many as are handed out before half of their hold is over: what waits for longer goes back to the server.

    most: and no more than these.
    """

    def __init__(self, most: int) -> None:
        self.value = most
        self._most = most
        self._received = 0  # by the last receive
        self._in_time = 0  # full receives since messages were given back

    def received(self, count: int) -> None:
        self._received = count

    def gave_back(self, count: int) -> None:
        """Of those received. The next receives ask for a power of two: those that ask for the same can begin ahead."""
        handed_out = max(self._received - count, 1)
        self.value = min(self.value, 1 << handed_out.bit_length() - 1)
        self._received = self._in_time = 0

    def emptied(self) -> None:
        """All are handed out or given back."""
        if self._received >= self.value:
            self._in_time += 1
            if self._in_time == MORE_AFTER:
                self.value = min(2 * self.value, self._most)
                self._in_time = 0
        self._received = 0
