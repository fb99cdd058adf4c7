"""What ends a consumer's `run`, in a thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType
from typing import Self


class Signals:
    """SIGTERM and SIGINT call `received` in the main thread; other threads get no signals."""

    def __init__(self, received: Callable[[], None]) -> None:
        self._received = received
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, lambda *_: self._received())
        return self

    def restore_signals(self) -> None:
        """From now on a signal does what it did before."""
        while self._before:
            signal.signal(*self._before.popitem())

    def __exit__(self, *_: object) -> None:
        self.restore_signals()


class Ending(Signals):
    """Is set when the consumer has ended, and by a signal."""

    def __init__(self) -> None:
        super().__init__(self.set)
        self._set: SimpleQueue[None] = SimpleQueue()  # a signal handler may put into it, but not set an Event

    def set(self) -> None:
        self._set.put(None)

    def wait(self) -> None:
        self._set.get()
