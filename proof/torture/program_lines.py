"""What a program that can be killed says of its calls: a JSON line when one begins, another one how it ended."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

PAUSE_S = 0.02  # after a failure, and until a server is there


class Lines:
    """To stdout. What has begun and not ended when the process is killed has an unknown outcome."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # clients call listeners and checkers in threads of theirs

    def call(self, name: str, do: Callable[[], object], **said: Any) -> bool:
        """`do` may return a dict: more to say at its end. Whether it succeeded."""
        number = self.begin(name, **said)
        try:
            result = do()
        except Exception as error:  # noqa: BLE001 - whatever a client raises, it may have happened
            self.end(number, error=repr(error)[:200])
            time.sleep(PAUSE_S)
            return False
        self.end(number, **(result if isinstance(result, dict) else {}))
        return True

    def unconfirmed(self, name: str, **said: Any) -> None:
        """A call whose outcome nobody learns."""
        self.end(self.begin(name, **said), error="nobody confirms it")

    def begin(self, name: str, **said: Any) -> int:
        """The call's number, for `end`."""
        number = next(self._numbers)
        self._say(number=number, call=name, invoked_ms=now_ms(), **said)
        return number

    def end(self, number: int, **said: Any) -> None:
        """With an `error`: it may have happened."""
        self._say(number=number, completed_ms=now_ms(), **said)

    def _say(self, **line: Any) -> None:
        with self._lock:
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()


def now_ms() -> float:
    """Of the machine's monotonic clock, which all processes share."""
    return time.monotonic() * 1_000
