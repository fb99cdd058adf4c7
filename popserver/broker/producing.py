"""Sends, delayed messages, and checks of transactions."""

from __future__ import annotations

from popserver.broker.engine import Engine
from popserver.catalog.flow import Catalog
from popserver.producing.checks import Transactions
from popserver.producing.rules import CheckPolicy
from popserver.producing.scheduled import Pending
from popserver.producing.send import Sending


class Producing:
    """What producers need."""

    def __init__(
        self, engine: Engine, catalog: Catalog, checks: CheckPolicy, *, key_window_ms: int, delay_ms_max: int
    ) -> None:
        reader, writer, clock = engine.reader, engine.writer, engine.clock
        self.has_idempotency_keys = key_window_ms > 0
        self.pending = Pending(reader, writer, catalog, clock, engine.wakeups, key_window_ms)
        self.transactions = Transactions(reader, writer, catalog, clock, checks)
        self.sending = Sending(
            writer,
            catalog,
            self.transactions,
            self.pending,
            clock,
            key_window_ms=key_window_ms,
            delay_ms_max=delay_ms_max,
        )
