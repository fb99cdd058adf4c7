"""Receives and what settles their messages; pulls, offsets and what sends messages back; bulk calls."""

from __future__ import annotations

from popserver.broker.engine import Engine
from popserver.broker.sessions import Sessions
from popserver.bulk.flow import Bulk
from popserver.catalog.flow import Catalog
from popserver.catalog.paused import PausedGroups
from popserver.filters.memory import Filters
from popserver.pulling.flow import Pulls
from popserver.pulling.offsets import Offsets
from popserver.pulling.send_back_flow import SendBacks
from popserver.receiving.filter_prefetch import FilterPrefetch
from popserver.receiving.flow import Polls
from popserver.receiving.redeliveries import Redeliveries
from popserver.settling.flow import Settling


class Consuming:
    """What consumers need."""

    def __init__(
        self,
        engine: Engine,
        catalog: Catalog,
        sessions: Sessions,
        paused: PausedGroups,
        filter_bytes_max: int,
        *,
        long_polling: bool,
    ) -> None:
        reader, writer, clock = engine.reader, engine.writer, engine.clock
        self.redeliveries = Redeliveries(clock.now_ms(), engine.meters.delivered)
        filter_prefetch = FilterPrefetch(reader)
        filters = Filters(engine.budgets.add("filters", filter_bytes_max, "bytes", "max_filter_memory"))
        self.polls = Polls(
            writer,
            catalog,
            clock,
            engine.wakeups,
            sessions.hold_release,
            self.redeliveries,
            filter_prefetch,
            filters,
            engine.undelivered,
            paused,
            sessions.lite,
            sessions.waits,
            engine.background,
        )
        self.settling = Settling(writer, catalog)
        self.offsets = Offsets(reader, writer, catalog)
        self.retries = SendBacks(writer, catalog)
        self.bulk = Bulk(reader, writer, catalog, clock, self.redeliveries, filter_prefetch, paused)
        self.pulls = Pulls(
            reader,
            catalog,
            self.offsets,
            clock,
            engine.wakeups,
            filters,
            engine.undelivered,
            paused,
            engine.meters.delivered,
            sessions.waits,
            long_polling=long_polling,
        )
        if long_polling:
            writer.effects.on_ready(self.pulls.parked.wake, among=self.pulls.parked.topics)

    @property
    def open(self) -> int:
        """Parked receives and pulls, and receives that are reading the store for the first time."""
        return self.polls.open + self.pulls.parked.count
