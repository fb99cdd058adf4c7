"""Searches the store for rows that keep messages from being delivered: for readiness, metrics and operators.

A round reads each table of the invariants, page by page: a small store in one read of some milliseconds, a large one in
many reads, with pauses. A round begins at a request if the last one ended some seconds ago, so it takes at most 2 % of
one reader's time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import structlog

from popserver.database.invariants.queries import LATE_MS, Moments
from popserver.database.invariants.stuck import STUCK
from popserver.engine.clock import Clock
from popserver.engine.reader import LogLimit, Reader
from popserver.engine.writer import Writer
from popserver.maintenance.repair import FIRST, Broken, RepairRow, ScanCursor, StuckNames, names_of, scan_on
from popserver.model.errors import PopError

PAUSE_FACTOR = 50  # times the duration of the read
ROUND_S = 10.0  # from the end of a round to the next one
WAIT_S = 0.4  # for a round that runs
LISTED_MAX = 1_000
PASSES_MAX = 5  # after the repair of one row, another one may break an invariant

log = structlog.get_logger("popserver.patrol")


class RepairedRow(NamedTuple):
    """A row that breaks an invariant, its names for operators, and whether it is repaired."""

    broken: Broken
    names: StuckNames
    is_repaired: bool


class Repaired(NamedTuple):
    """The rows that break invariants, at most 1,000; the number of all of them, and how many of them are repaired."""

    rows: Sequence[RepairedRow]
    in_all: int
    repaired: int


class _Round:
    """The result of a round: the number of rows by invariant, and the first rows."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.rows: list[Broken] = []

    def add(self, rows: Sequence[Broken]) -> None:
        self.counts.update(each.stuck.name for each in rows)
        self.rows += rows[: LISTED_MAX - len(self.rows)]


class Patrol:
    """The rounds of one server."""

    def __init__(self, reader: Reader, writer: Writer, clock: Clock) -> None:
        self._reader = reader
        self._writer = writer
        self._clock = clock
        # A server that has just started must first end the holds that became due while none ran.
        self._late_from_ms = clock.now_ms() + LATE_MS
        self._running: asyncio.Task[None] | None = None
        self._counts: Counter[str] | None = None
        self._took_s = 0.0
        self._next_s = 0.0
        self._log_limit = LogLimit()
        self._failure_log_limit = LogLimit()

    async def counts(self) -> Counter[str] | None:
        """How many rows break each invariant, by its name; None if no round has ended yet."""
        loop = asyncio.get_running_loop()
        if self._running is None and loop.time() >= self._next_s:
            self._running = loop.create_task(self._round())
        if self._running is not None and self._took_s < WAIT_S:
            await asyncio.wait([self._running], timeout=WAIT_S)
        return self._counts

    async def sentences(self) -> list[str]:
        """Sentences about broken invariants, with the way out; empty if there are none."""
        counts: Mapping[str, int] = await self.counts() or {}
        return [
            f"messages may never be delivered: the store has {each.name} ({counts[each.name]}); popmq repair shows"
            " what it would do, and does it with --yes"
            for each in STUCK
            if counts.get(each.name)
        ]

    async def repair(self, *, dry_run: bool) -> Repaired:
        """Search the whole store, and repair the rows that are found, unless `dry_run`."""
        done: list[RepairedRow] = []
        for _ in range(1 if dry_run else PASSES_MAX):
            seen = await self._search(pauses=False)
            known = {each.broken for each in done}
            fresh = [each for each in seen.rows if each not in known]
            names = await self._reader.read(partial(names_of, rows=fresh))
            for each, its_names in zip(fresh, names, strict=True):
                is_repaired = not dry_run and await self._writer.submit(RepairRow(each))
                done.append(RepairedRow(each, its_names, is_repaired))
            if not fresh:
                break
        if not dry_run:
            await self.close()  # a round that has read the store before the repair
            self._counts, self._next_s = None, 0.0
        in_all = len(done) + seen.counts.total() - len(seen.rows)
        return Repaired(done[:LISTED_MAX], in_all, sum(each.is_repaired for each in done))

    async def close(self) -> None:
        """End a round that runs."""
        if (ended := self._running) is not None:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)
            if self._running is ended:  # it had not begun
                self._running = None

    async def _round(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            self._report((await self._search(pauses=True)).counts)
        except PopError as error:
            self._counts = None
            if (suppressed := self._failure_log_limit.dropped(self._clock.now_ms())) is not None:
                log.warning("the store was not checked for stuck rows", reason=error.sentence, suppressed=suppressed)
        finally:
            self._took_s = loop.time() - began_s
            self._next_s = loop.time() + ROUND_S
            self._running = None

    def _report(self, counts: Counter[str]) -> None:
        self._counts = counts
        if counts and (suppressed := self._log_limit.dropped(self._clock.now_ms())) is not None:
            log.warning("messages may never be delivered; see popmq repair", suppressed=suppressed, **_words(counts))

    async def _search(self, *, pauses: bool) -> _Round:
        found = _Round()
        cursor: ScanCursor | None = FIRST
        while cursor is not None:
            moments = Moments(self._clock.now_ms(), self._clock.calendar_ms())
            read = partial(scan_on, cursor=cursor, moments=moments, with_late=moments.now_ms >= self._late_from_ms)
            rows, cursor, took_s = await self._reader.look_up(read)
            found.add(rows)
            if pauses and cursor is not None:
                await asyncio.sleep(PAUSE_FACTOR * took_s)
        return found


def _words(counts: Counter[str]) -> dict[str, int]:
    return {name.replace(" ", "_"): count for name, count in counts.items()}
