"""What the programs in Python share: commands come in, answers go out, and listeners fail as they were told to."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Command = dict[str, Any]
Commands = Mapping[str, Callable[[Command], dict[str, Any]]]

# All clients take 3 s by default, which a busy machine may need for an ordinary answer.
REQUEST_TIMEOUT_S = 10

_stdout = threading.Lock()


def say(**event: Any) -> None:
    line = json.dumps(event)
    with _stdout:
        print(line, flush=True)


class NoSuchCall(Exception):
    """The client has no such call; the text names it."""


class Plan:
    """Fails the first `fail` attempts of a message (`how`: by a result, or by raising); may wait to be released."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._calls: Counter[str] = Counter()  # a client that retries in place leaves the delivery attempt as it is
        self.released = threading.Event()
        if not command["waits"]:
            self.released.set()

    def is_consumed(self, message: dict[str, Any]) -> bool:
        """A listener is called with the message: say so, and decide."""
        self._calls[message["message_id"]] += 1
        attempt = max(self._calls[message["message_id"]], message["attempt"])
        say(heard=self._command["client"], message={**message, "attempt": attempt})
        self.released.wait()
        is_good = self._command["poison"] and message["body"] != self._command["poison"]
        if is_good or attempt > self._command["fail"]:
            return True
        if self._command["how"] == "raise":
            raise RuntimeError("the listener raises on purpose")
        return False


def serve(commands: Commands, workers: ThreadPoolExecutor) -> None:
    """Answer commands until nobody asks any more."""
    with workers:
        for line in sys.stdin:
            workers.submit(_answer, commands, json.loads(line))


def _answer(commands: Commands, command: Command) -> None:
    try:
        said = commands[command["do"]](command)
    except Exception as error:  # noqa: BLE001 - whatever the client raises is the answer
        code = getattr(error, "code", None)
        said = {
            "refused": type(error).__name__,
            "code": int(code) if isinstance(code, int) else None,
            "words": str(error),
        }
    say(answer=command["number"], **said)
