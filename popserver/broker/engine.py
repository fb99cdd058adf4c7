"""The parts that all rooms use: the store, its readers and writer, the clock, wake-ups, budgets, background tasks."""

from __future__ import annotations

from popserver.database.database import Database
from popserver.engine.background import BackgroundTasks
from popserver.engine.clock import Clock
from popserver.engine.reader import Reader
from popserver.engine.undelivered import Undelivered
from popserver.engine.wakeups import Wakeups
from popserver.engine.writer import Writer
from popserver.model.budget import BrokerLimits, Budgets


class Engine:
    """The parts that do not depend on messages."""

    def __init__(self, database: Database, clock: Clock, limits: BrokerLimits) -> None:
        self.database = database
        self.clock = clock
        self.budgets = budgets = Budgets()
        self.wakeups = Wakeups(clock)
        backlog = budgets.add("send backlog", limits.send_backlog_bytes, "bytes", "send_backlog")
        undelivered = budgets.add("undelivered", limits.undelivered_bytes, "bytes", "max_undelivered")
        self.undelivered = Undelivered(undelivered, clock)
        self.writer = Writer(database, clock, backlog, self.undelivered.capacity)
        self.writer.effects.on_ready(self.wakeups.wake)
        self.meters = self.writer.meters
        self.reader = Reader(database, self.writer)
        self.background = BackgroundTasks(clock)
