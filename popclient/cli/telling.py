"""How far long work has come, on standard error: the first and the last word, and one a second between."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from popclient.cli.output import complain

EVERY_S: Final = 1.0


class Telling:
    """`say` is always heard; `progress` once a second, so that neither a terminal nor a log drowns.

    `is_under_way` once there was progress, heard or not.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._said_at = now()
        self.is_under_way = False

    def say(self, sentence: str) -> None:
        self._said_at = self._now()
        complain(sentence)

    def progress(self, sentence: str) -> None:
        self.is_under_way = True
        if self._now() - self._said_at >= EVERY_S:
            self.say(sentence)
