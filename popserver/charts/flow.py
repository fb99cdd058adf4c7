"""Keeps the charts: looks at the store once in the finest step, and writes a point into each level.

One of several servers writes the counts. Each writes the deliveries that it has made. A look at a large store takes
long, so the pause after it is so many times as long: keeping charts takes a small part of one core.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import structlog

from popserver.charts import looks, points
from popserver.charts.looks import Look
from popserver.charts.points import WritePoints
from popserver.charts.rules import (
    LEVELS,
    ChartKind,
    Delays,
    Level,
    Owner,
    Shown,
    counts_of,
    delays_of,
    first_series,
    level_for,
    shown,
)
from popserver.engine.clock import Clock
from popserver.engine.meters import DELIVERY_MS, Delivered, Tallies
from popserver.engine.reader import LogLimit, Reader
from popserver.engine.timers import DueTimer
from popserver.engine.writer import Writer
from popserver.model.errors import BadRequest, PopError
from popserver.model.names import Resource
from popserver.model.retry import SECOND_MS
from popserver.model.times import span

AGAIN_MS = 1 * SECOND_MS  # if another server was writing
PAUSE_FACTOR = 200  # times what a look and its writing took

log = structlog.get_logger("popserver.charts")


class Chart(NamedTuple):
    """The points of a group or topic, and the length of their steps; `is_kept`: whether this server keeps charts."""

    level: Level
    points: list[Shown]
    is_kept: bool


class Charts:
    """The charts of the groups and topics of one server."""

    def __init__(
        self,
        reader: Reader,
        writer: Writer,
        clock: Clock,
        delivered: Tallies[tuple[int, int], Delivered],
        leads: Callable[[], bool],
        series_max: int,
    ) -> None:
        """`delivered`: what this server has delivered, by group id and topic id. `leads`: whether this server is the
        one that counts. `series_max`: how many groups and topics have a chart; 0: charts are not kept."""
        self._reader = reader
        self._writer = writer
        self._clock = clock
        self._new_delays = NewDelays(delivered)
        self._leads = leads
        self._series_max = series_max
        self._timer = DueTimer(clock, self._keep)
        self._log_limit = LogLimit()

    def start(self) -> None:
        if self._series_max:
            self._timer.expect(self._clock.now_ms())

    async def idle(self) -> None:
        await self._timer.idle()

    async def close(self) -> None:
        await self._timer.close()

    async def chart(self, kind: ChartKind, name: Resource, range_ms: int) -> Chart:
        """The chart of a group or topic over the last `range_ms`, at most seven days."""
        if not 0 < range_ms <= LEVELS[-1].range_ms:
            raise BadRequest(
                f"a chart of {span(max(0, range_ms))} is not kept; ask for more than 0 s, and at most"
                f" {span(LEVELS[-1].range_ms)}"
            )
        level, now_ms = level_for(range_ms), self._clock.now_ms()
        stored = await self._reader.look_up(
            lambda conn: points.points(conn, looks.owner_of(conn, kind, name), level, now_ms)
        )
        after_ms = now_ms - range_ms - level.step_ms
        return Chart(level, shown([each for each in stored if each.at_ms > after_ms], level), bool(self._series_max))

    async def _keep(self) -> int | None:
        """Write one point of each chart. Returns when the next one is due."""
        loop, now_ms = asyncio.get_running_loop(), self._clock.now_ms()
        began_s = loop.time()
        try:
            if not await self._write(now_ms):
                return now_ms + AGAIN_MS
        except PopError as error:
            if (suppressed := self._log_limit.dropped(now_ms)) is not None:
                log.warning("charts have a gap", reason=error.sentence, suppressed=suppressed)
        pause_ms = round(PAUSE_FACTOR * (loop.time() - began_s) * SECOND_MS)
        return LEVELS[0].begin_ms(now_ms + max(pause_ms, LEVELS[0].step_ms))

    async def _write(self, now_ms: int) -> bool:
        """False: another server was writing."""
        delays = self._new_delays.look()
        counts = {}
        if self._leads():
            found: Look = await self._reader.read(lambda conn: looks.look(conn, now_ms))
            counts = counts_of(found.lag, found.topics, now_ms)
            kept = first_series(counts, self._series_max)
            counts = {owner: values for owner, values in counts.items() if owner in kept}
            delays = {owner: values for owner, values in delays.items() if owner in kept}
        if (counts or delays) and not await self._writer.submit(WritePoints(now_ms, counts, delays)):
            return False
        self._new_delays.take()
        return True


class NewDelays:
    """What was delivered since it was last taken."""

    def __init__(self, delivered: Tallies[tuple[int, int], Delivered]) -> None:
        self._delivered = delivered
        self._before: dict[tuple[int, int], tuple[list[int], float]] = {}
        self._seen: dict[tuple[int, int], tuple[list[int], float]] = {}

    def take(self) -> None:
        """What `look` has returned last is old from now on."""
        self._before |= self._seen

    def look(self) -> dict[Owner, Delays]:
        """The deliveries of each group and each topic that had some."""
        self._seen = {}
        new: dict[Owner, tuple[list[int], float]] = {}
        nothing = [0] * (len(DELIVERY_MS) + 1)
        for key, counted in self._delivered.items():
            counts, total_ms = list(counted.delays.counts), counted.delays.total
            was, was_ms = self._before.get(key, (nothing, 0.0))
            if counts == was:
                continue
            self._seen[key] = (counts, total_ms)
            more = [late - early for late, early in zip(counts, was, strict=True)]
            for owner in (Owner(ChartKind.GROUP, key[0]), Owner(ChartKind.TOPIC, key[1])):
                so_far, so_far_ms = new.get(owner, (nothing, 0.0))
                together = [one + other for one, other in zip(so_far, more, strict=True)]
                new[owner] = (together, so_far_ms + total_ms - was_ms)
        return {owner: delays_of(counts, total_ms, DELIVERY_MS) for owner, (counts, total_ms) in new.items()}
