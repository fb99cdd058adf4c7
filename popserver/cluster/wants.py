"""Announces of which topics this server wants to be notified, and hears what the other servers want."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from popserver.cluster.sql import AnnounceWants, NotifyLate
from popserver.cluster.wanted import WantedTopics
from popserver.database import notifications
from popserver.database.notifications import WANTS, Notification
from popserver.engine.clock import Clock
from popserver.engine.transaction import Transaction
from popserver.engine.wakeups import WatchedTopics
from popserver.engine.writer import Writer
from popserver.model.retry import SECOND_MS

AGAIN_MS = 30 * SECOND_MS  # servers that have missed an announcement notify this one of all topics until then


class Wants:
    """The notifications of this server for the others, which leave out what none of them wants."""

    def __init__(self, watched: WatchedTopics, writer: Writer, clock: Clock) -> None:
        self._watched = watched
        self._writer = writer
        self._clock = clock
        self._wanted = WantedTopics()
        self._others: frozenset[str] = frozenset()
        self._own: frozenset[int] = frozenset()  # the writer's thread reads it
        self._announced_ms = 0
        self._announcing: asyncio.Future[None] | None = None
        self._again = False
        watched.on_new = self._announce
        watched.is_shared = True

    def notification(self, sender: str, tx: Transaction) -> str:
        """The notification of a transaction to other servers; empty for none. The writer's thread calls it."""
        ready, lite = self._wanted.among(tx.ready_topics), tx.ready_lite
        if lite:
            wanted = self._wanted.among(lite)
            lite = {topic_id: lite[topic_id] for topic_id in wanted}
        return notifications.encode(sender, ready, tx.invalidations, tx.signals, lite, self._own)

    def heard(self, notification: Notification) -> None:
        if WANTS not in notification.signals:
            return
        late = self._wanted.announced(notification.sender, notification.wants)
        if late:
            self._writer.submit(NotifyLate(late)).add_done_callback(_ignored)

    def unsure(self) -> None:
        """An unknown server runs: notify of all topics until it has announced what it wants."""
        self._watched.is_shared = True
        self._wanted.unsure()

    def missed(self) -> None:
        """Announcements may have been missed: notify of all topics until the servers announce again."""
        self._watched.is_shared = True
        self._wanted.forget()

    def agree_on(self, others: Collection[str], *, is_alone: bool) -> None:
        """After each heartbeat: these other servers run. `is_alone`: certainly no other server runs."""
        self._watched.is_shared = not is_alone
        self._wanted.agree_on(others)
        has_new, self._others = not self._others.issuperset(others), frozenset(others)
        now_ms = self._clock.now_ms()
        if has_new or (others and now_ms - self._announced_ms >= AGAIN_MS):
            self._watched.forget_old()
            self._announce()

    def _announce(self) -> None:
        """Announce what is watched now, unless nobody would hear it."""
        if not self._others:
            return
        if self._announcing is not None:
            self._again = True
            return
        self._announced_ms = self._clock.now_ms()
        self._own = self._watched.topics()
        self._announcing = self._writer.submit(AnnounceWants())
        self._announcing.add_done_callback(self._done)

    def _done(self, answer: asyncio.Future[None]) -> None:
        _ignored(answer)
        self._announcing = None
        if self._again:
            self._again = False
            self._announce()


def _ignored(answer: asyncio.Future[None]) -> None:
    """The database refused. The other servers do not hear of it: parked polls search on their beat."""
    if not answer.cancelled():
        answer.exception()
