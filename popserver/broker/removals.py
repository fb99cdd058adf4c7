"""The log's account of what the server removed by itself: one line for each topic and run, not for each step."""

from __future__ import annotations

import structlog

from popserver.broker.clock import Clock
from popserver.broker.moments import utc
from popserver.domain.retry import SECOND_MS
from popserver.store.retention import Removed

SAID_AFTER_MS = 10 * SECOND_MS  # of a long run: what a crash may keep from the log

log = structlog.get_logger("popserver.maintenance")


class Removals:
    """Counts, and says so when a run of steps ends or has lasted for a while."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._messages: dict[str, Removed] = {}
        self._rows: dict[str, int] = {}
        self._since_ms: int | None = None

    def messages(self, removed: Removed) -> None:
        """A step has removed old messages of a topic."""
        name = str(removed.topic)
        before = self._messages.get(name, removed._replace(messages=0))
        self._messages[name] = Removed(
            removed.topic,
            before.messages + removed.messages,
            min(before.oldest_ms, removed.oldest_ms),
            max(before.newest_ms, removed.newest_ms),
        )
        self._go_on()

    def rows(self, what: str, count: int) -> None:
        """A step has removed so many rows of another kind."""
        self._rows[what] = self._rows.get(what, 0) + count
        self._go_on()

    def say(self) -> None:
        """Write a line for each topic and each kind."""
        for name, each in sorted(self._messages.items()):
            oldest, newest = utc(each.oldest_ms), utc(each.newest_ms)
            log.info("old messages removed", topic=name, count=each.messages, oldest=oldest, newest=newest)
        for what, count in sorted(self._rows.items()):
            log.info(f"{what} removed", count=count)
        self._messages, self._rows, self._since_ms = {}, {}, None

    def _go_on(self) -> None:
        now_ms = self._clock.now_ms()
        if self._since_ms is None:
            self._since_ms = now_ms
        elif now_ms - self._since_ms >= SAID_AFTER_MS:
            self.say()
