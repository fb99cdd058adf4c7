"""What a test may wait for and compare: the broker's own account of itself."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, text

from popserver.in_process import EmbeddedBroker
from popserver.model.group import NewGroup
from popserver.model.names import Resource
from popserver.model.retry import FIFO_INTERVAL_MS, RETRY_LADDER_MS, Exponential, RetryPolicy
from popserver.model.topic import MessageType, NewTopic

PATIENCE_S = 30
LOOK_EVERY_S = 0.01
LOOK_S_MAX = 10.0
LAG = (
    "SELECT ready, inflight, waiting_retry, dead_letters, stored FROM group_lag"
    " WHERE consumer_group = :consumer_group AND topic = :topic"
)


class Lag(NamedTuple):
    """How many messages of a topic are in which state for a group; what is missing to `stored` is committed."""

    ready: int = 0
    inflight: int = 0
    waiting_retry: int = 0
    dead_letters: int = 0
    stored: int = 0

    @property
    def is_done(self) -> bool:
        """Every message is committed."""
        return self == Lag(stored=self.stored)


class Seen:
    """Looks into a running broker."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker

    @property
    def parked(self) -> int:
        """Polls that wait at the server."""
        return self._broker.app.broker.engine.wakeups.parked

    @property
    def clients(self) -> int:
        """Clients the server takes for being there."""
        return len(self._broker.app.broker.sessions.clients)

    def lag(self, group: str, topic: str) -> Lag:
        """The group's row of view `group_lag`; zeros where it has not met the topic."""

        def read(conn: Connection) -> Lag:
            row = conn.execute(text(LAG), {"consumer_group": group, "topic": topic}).one_or_none()
            return Lag(*row) if row else Lag()

        return self._broker.run(self._broker.app.broker.engine.reader.read(read))

    def make_group(
        self,
        name: str,
        max_attempts: int,
        *intervals_ms: int,
        fifo_interval_ms: int = FIFO_INTERVAL_MS,
        exponential: Exponential | None = None,
    ) -> None:
        """A group with a retry policy of its own."""
        policy = RetryPolicy(max_attempts, exponential or intervals_ms or RETRY_LADDER_MS, fifo_interval_ms)
        self._broker.run(self._broker.app.broker.catalog.create_group(NewGroup(Resource("", name), policy)))

    def make_topic(self, name: str, queue_count: int, *accepts: MessageType) -> None:
        """A topic for normal messages, or for what it `accepts`."""
        new = NewTopic(Resource("", name), queue_count, accepts or (MessageType.NORMAL,))
        self._broker.run(self._broker.app.broker.catalog.create_topic(new))


def lag_in(database: Path, group: str, topic: str) -> Lag:
    """The same, read from the file of a server in another process."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as conn:
        row = conn.execute(LAG, {"consumer_group": group, "topic": topic}).fetchone()
    return Lag(*row) if row else Lag()


def until(fact: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Wait for a fact. A machine that stops everything for minutes is no failure, so no look counts for much."""
    waited_s = 0.0
    while True:
        since = time.monotonic()
        if fact():
            return
        assert waited_s < patience_s, "waited in vain"
        time.sleep(LOOK_EVERY_S)
        waited_s += min(time.monotonic() - since, LOOK_S_MAX)
