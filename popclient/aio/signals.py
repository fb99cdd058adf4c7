"""What ends a consumer's `run`, in an event loop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Self


class Signals:
    """SIGTERM and SIGINT call `received` where the event loop takes signals.

    Event loops take none outside the main thread, and none on Windows.
    """

    def __init__(self, received: Callable[[], None]) -> None:
        self._received = received
        self._signals: list[signal.Signals] = []

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                asyncio.get_running_loop().add_signal_handler(number, self._received)
            except (NotImplementedError, RuntimeError, ValueError):
                break
            self._signals.append(number)
        return self

    def restore_signals(self) -> None:
        """From now on a signal ends the process, as before."""
        while self._signals:
            asyncio.get_running_loop().remove_signal_handler(self._signals.pop())

    def __exit__(self, *_: object) -> None:
        self.restore_signals()


class Ending(Signals):
    """Is set when the consumer has ended, and by a signal."""

    def __init__(self) -> None:
        super().__init__(self.set)
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
