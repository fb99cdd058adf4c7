"""Streams that a client opens and resets at once: each costs the server a call, and the client almost nothing.

If a client resets many streams, the front relays its bytes so slowly that the server keeps up. This works only for
plaintext, because gRPC decrypts TLS.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from popserver.front.turns import Rate

PER_S = 500
AT_ONCE = 500
PAUSE_S = 0.02
# HTTP/2's RST_STREAM frame: length, type and flags, followed by a stream and an error code.
RESET = b"\0\0\4\3\0"
_WHOLE_RESET = re.compile(re.escape(RESET) + rb"[\0-\x7f]...\0\0\0[\0-\x0d]", re.DOTALL)


class SlowedResets:
    """Relays the bytes of one client to the server, and limits the rate of resets."""

    def __init__(self, pass_on: Callable[[bytes], None], hold: Callable[[], None], go_on: Callable[[], None]) -> None:
        """`hold` stops reading from the client; `go_on` continues."""
        self._pass_on = pass_on
        self._hold = hold
        self._go_on = go_on
        self._rate = Rate(PER_S, AT_ONCE)
        self._left = b""
        self._alarm: asyncio.TimerHandle | None = None

    def take(self, data: bytes) -> None:
        """Relay the data up to the allowed number of resets now, and the rest later."""
        if self._alarm is None:
            self._pass_on(self._without_rest(data))
        else:
            self._left += data

    def drop(self) -> None:
        """Forget the rest: the client has disconnected."""
        if self._alarm is not None:
            self._alarm.cancel()

    def _without_rest(self, data: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        resets = len(_WHOLE_RESET.findall(data)) if RESET in data else 0
        taken = self._rate.take(loop.time(), resets)
        if taken == resets:
            return data
        end = len(data) * taken // resets
        self._left = data[end:]
        self._alarm = loop.call_later(PAUSE_S, self._take_left)
        self._hold()
        return data[:end]

    def _take_left(self) -> None:
        self._alarm = None
        left, self._left = self._left, b""
        self.take(left)
        self._go_on()
