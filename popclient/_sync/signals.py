"""What a consumer's `run` waits for, in a thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType
from typing import Self


class Ending:
    """Is set when the consumer has ended, and by SIGTERM and SIGINT in the main thread."""

    def __init__(self) -> None:
        self._set: SimpleQueue[None] = SimpleQueue()  # a signal handler may put into it, but not set an Event
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}

    def set(self) -> None:
        self._set.put(None)

    def wait(self) -> None:
        self._set.get()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, lambda *_: self.set())
        return self

    def restore_signals(self) -> None:
        """From now on a signal does what it did before."""
        while self._before:
            signal.signal(*self._before.popitem())

    def __exit__(self, *_: object) -> None:
        self.restore_signals()
