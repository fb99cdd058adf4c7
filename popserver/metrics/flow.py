"""Reads the numbers of the store for scrapes, without ever making a scrape or the database wait for long.

One read runs at a time. The next one starts at a scrape, after a pause (`pause_s`), so reading takes at most 3 % of one
reader's time. A scrape waits for a read that runs, but not for long; then it gets the previous numbers, or none if
these are too old.
"""

from __future__ import annotations

import asyncio

import structlog

from popserver.engine.clock import Clock
from popserver.engine.reader import LogLimit, Reader
from popserver.metrics.store import StoreNumbers, store_facts
from popserver.model.errors import PopError

WAIT_S = 0.4  # of a scrape, for a read that runs
PAUSE_S = 1.0  # at least, between two reads
PAUSE_FACTOR = 300  # times what the last read took, as long as that is no more than
PAUSE_S_MAX = 30.0
LONG_FACTOR = 30  # at least
OLD_S = 60.0  # numbers are exported until they are so old, if no pause is longer

log = structlog.get_logger("popserver.metrics")


def pause_s(took_s: float) -> float:
    """How long to wait after a read: the numbers cost little of one reader, and are 30 s old or a little more."""
    return max(PAUSE_S, min(PAUSE_FACTOR * took_s, PAUSE_S_MAX), LONG_FACTOR * took_s)


class StoreWatch:
    """The store as the last read found it."""

    def __init__(self, reader: Reader, clock: Clock, pairs_max: int) -> None:
        """`pairs_max`: of how many pairs of topic and group the numbers are read one by one."""
        self._reader = reader
        self._clock = clock
        self._pairs_max = pairs_max
        self._reading: asyncio.Task[None] | None = None
        self._found: StoreNumbers | None = None
        self._found_at_s = 0.0
        self._next_s = 0.0
        self._log_limit = LogLimit()

    async def numbers(self) -> StoreNumbers | None:
        """The newest numbers that can be had soon; None if there are none, or only old ones."""
        loop = asyncio.get_running_loop()
        if self._reading is None and loop.time() >= self._next_s:
            self._reading = loop.create_task(self._read())
        # A read that takes longer than the wait is not waited for again: the scrape gets the numbers before at once.
        if self._reading is not None and (self._found is None or self._found.took_s < WAIT_S):
            await asyncio.wait([self._reading], timeout=WAIT_S)
        if self._found is None:
            return None
        age_s = loop.time() - self._found_at_s
        return None if age_s > OLD_S + pause_s(self._found.took_s) else self._found._replace(age_s=age_s)

    async def close(self) -> None:
        """Wait for a read that runs."""
        if self._reading is not None:
            await asyncio.wait([self._reading])

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        began_s, now_ms, calendar_ms = loop.time(), self._clock.now_ms(), self._clock.calendar_ms()
        try:
            facts = await self._reader.read(lambda conn: store_facts(conn, now_ms, calendar_ms, self._pairs_max))
            self._found = StoreNumbers(facts, now_ms, calendar_ms, 0.0, loop.time() - began_s)
            self._found_at_s = began_s
        except PopError as error:
            if (suppressed := self._log_limit.dropped(now_ms)) is not None:
                log.warning("no numbers of the store for metrics", reason=error.sentence, suppressed=suppressed)
        finally:
            self._next_s = loop.time() + pause_s(loop.time() - began_s)
            self._reading = None
