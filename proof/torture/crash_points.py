"""A server that kills itself at a point: python -m proof.torture.crash_points POINT PASSES COMMAND serve …

It dies as by `kill -9`, when it comes to the point for the PASSES-th time. A kill from outside seldom meets such a
moment: between a COMMIT and its answer lie microseconds.
"""

from __future__ import annotations

import importlib
import itertools
import os
import signal
import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Final, NamedTuple

from proof.torture.server_clock import run


class CrashPoint(NamedTuple):
    """Before or after a call of this function; `text`: only those that get a statement which begins so."""

    module: str
    function: str
    is_before: bool = False
    text: str = ""

    def plant(self, passes: int) -> None:
        """From now on the call with this number ends the process."""
        owner: Any = importlib.import_module(self.module)
        *classes, name = self.function.split(".")
        for each in classes:
            owner = getattr(owner, each)
        setattr(owner, name, self._deadly(getattr(owner, name), itertools.count(1), passes))

    def _deadly(self, right: Callable[..., Any], calls: itertools.count[int], passes: int) -> Callable[..., Any]:
        @wraps(right)
        def call(*given: Any, **named: Any) -> Any:
            is_meant = not self.text or any(str(each).startswith(self.text) for each in given)
            dies = is_meant and next(calls) == passes
            if dies and self.is_before:
                _die()
            result = right(*given, **named)
            if dies:
                _die()
            return result

        return call


_WRITER, _STORED, _DELIVERIES = "popserver.engine.writer", "popserver.messages.stored", "popserver.delivery.deliveries"
_before: Final = partial(CrashPoint, is_before=True)

POINTS: Final[dict[str, CrashPoint]] = {
    "after BEGIN": CrashPoint(_WRITER, "execute_text", text="BEGIN"),
    "before COMMIT": _before(_WRITER, "execute_text", text="COMMIT"),
    "after COMMIT, before the answers": CrashPoint(_WRITER, "execute_text", text="COMMIT"),
    "before COMMIT beside other servers": _before("popserver.database.database", "Database.commit"),
    "after COMMIT beside other servers": CrashPoint("popserver.database.database", "Database.commit"),
    "before effects and answers": _before(_WRITER, "Writer._answer"),
    "after effects and answers": CrashPoint(_WRITER, "Writer._answer"),
    "offsets taken, messages not stored": _before(_STORED, "_store"),
    "messages stored": CrashPoint(_STORED, "_store"),
    "delayed and half messages stored": CrashPoint("popserver.messages.pending_messages", "store"),
    "delayed messages enqueued, still pending": CrashPoint(_STORED, "enqueue"),
    "pending messages removed": CrashPoint("popserver.messages.pending_messages", "remove"),
    "before new grants": _before(_DELIVERIES, "add"),
    "after new grants": CrashPoint(_DELIVERIES, "add"),
    "after repeated grants": CrashPoint(_DELIVERIES, "grant_again"),
    "after acks": CrashPoint(_DELIVERIES, "commit"),
    "after acks of message groups": CrashPoint(_DELIVERIES, "commit_whole_runs"),
    "after a changed hold": CrashPoint(_DELIVERIES, "change"),
    "after holds that ended": CrashPoint(_DELIVERIES, "end_time"),
    "after deliveries that ended": CrashPoint(_DELIVERIES, "end"),
    "after progress": CrashPoint("popserver.catalog.progress", "grow"),
    "dead letters copied, not noted": _before("popserver.delivery.dead_letter_topic", "_write"),
    "after a redrive's marks": CrashPoint("popserver.messages.dead_letters", "mark_redriven"),
}


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """Plant the point, then run the command's own program with the rest of the words."""
    name, passes, *words = sys.argv[1:]
    POINTS[name].plant(int(passes))
    return run(words)


if __name__ == "__main__":
    sys.exit(main())
