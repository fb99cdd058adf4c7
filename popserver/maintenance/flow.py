"""Background work: end due holds and intervals, and remove old messages and rows of deleted topics and groups.

Each task works in steps of at most 1,000 rows, so that users' requests run in between.
"""

from __future__ import annotations

import asyncio

import structlog

from popserver.database.notifications import DUE
from popserver.delivery import due
from popserver.delivery.holds import unattended_push_clients
from popserver.engine.clock import Alarm, Clock
from popserver.engine.reader import Reader
from popserver.engine.timers import DueTimer
from popserver.engine.writer import Writer
from popserver.maintenance import retention
from popserver.maintenance.purge import PurgeDeleted
from popserver.maintenance.retention import Removed
from popserver.messages import repeats
from popserver.model.errors import PopError
from popserver.model.retry import MINUTE_MS, SECOND_MS
from popserver.model.times import utc
from popserver.settling import expire

RETRY_MS = 1 * SECOND_MS  # after a failure of the database
RETENTION_PERIOD_MS = 1 * MINUTE_MS  # how long a message may stay after its retention
KEYS_PERIOD_MS = 1 * MINUTE_MS  # how long an idempotency key's row may stay after its window; it has no effect then

log = structlog.get_logger("popserver.maintenance")


class Maintenance:
    """Runs the background work when it is due."""

    def __init__(self, reader: Reader, writer: Writer, clock: Clock, *, retention_ms: int, key_window_ms: int) -> None:
        self._reader = reader
        self._writer = writer
        self._clock = clock
        self._retention_ms = retention_ms
        self._key_window_ms = key_window_ms
        self._removals = Removals(clock)
        self._sleeper = DueTimer(clock, self._end_due)
        writer.effects.on_due(DUE, self._sleeper)
        self._retainer = DueTimer(clock, self._retain)
        # A round of retention over all queues: the queue of its next step, and the time of the oldest message so far.
        self._from_queue = 0
        self._oldest_ms: int | None = None
        self._key_keeper = DueTimer(clock, self._expire_keys)
        self._purging: asyncio.Task[None] | None = None
        self._purge_again: Alarm | None = None

    async def start(self) -> list[str]:
        """Start, and end what became due while no server ran. Returns the clients that have open push holds and are
        connected to no server."""
        self._sleeper.expect(await self._reader.look_up(due.next_due_ms))
        self.purge()
        self.age()
        return await self._reader.read(unattended_push_clients)

    def check_due(self) -> None:
        """Search for due deliveries of which this server had no notification."""
        self._sleeper.check_due()

    def age(self) -> None:
        """Search for old messages: at a start, or when a jump of the clock is accepted."""
        if self._retention_ms:
            self._retainer.expect(self._clock.now_ms())
        if self._key_window_ms:
            self._key_keeper.expect(self._clock.now_ms())

    def purge(self) -> None:
        """Remove the rows of deleted topics and groups in the background, step by step."""
        if self._purging is None or self._purging.done():
            self._purging = asyncio.get_running_loop().create_task(self._purge())

    async def idle(self) -> None:
        await self._sleeper.idle()
        await self._retainer.idle()
        await self._key_keeper.idle()
        if self._purging is not None:
            await asyncio.gather(self._purging, return_exceptions=True)

    async def close(self) -> None:
        await self._sleeper.close()
        await self._retainer.close()
        await self._key_keeper.close()
        if self._purging is not None:
            self._purging.cancel()
            await asyncio.gather(self._purging, return_exceptions=True)
        if self._purge_again is not None:
            self._purge_again.cancel()
        self._removals.log_total()

    async def _end_due(self) -> int | None:
        try:
            ended = await self._writer.submit(expire.EndDue())
        except PopError as error:
            log.warning("ending due deliveries is delayed", reason=error.sentence)
            return self._clock.now_ms() + RETRY_MS
        for key, count in ended.requeued.items():
            self._writer.meters.delivered[key].requeued += count
        return ended.next_due_ms

    async def _retain(self) -> int | None:
        """One step. Returns when the next step is due: now, or after a round when its oldest message will be old.

        If no message is stored, this is a whole retention from now: no later message is old before that. Rounds begin a
        period apart, because under a steady load messages become old all the time.
        """
        now_ms, cutoff_ms = self._clock.now_ms(), self._clock.aged_ms() - self._retention_ms
        try:
            retained = await self._writer.submit(retention.Retain(cutoff_ms, self._from_queue))
        except PopError as error:
            log.warning("removing old messages is delayed", reason=error.sentence)
            return now_ms + RETENTION_PERIOD_MS
        for each in retained.queues:
            self._removals.messages(each)
        if retained.forgotten:
            self._removals.rows("old history", retained.forgotten)
        seen = [self._oldest_ms if self._from_queue else None, retained.oldest_ms]
        self._oldest_ms = min((each for each in seen if each is not None), default=None)
        # A step that found the catalog locked is repeated later.
        is_blocked = retained.next_queue == self._from_queue and not (retained.removed or retained.forgotten)
        is_more = retained.next_queue and not is_blocked
        self._from_queue = retained.next_queue
        if is_more:
            return now_ms
        self._removals.log_total()
        oldest_ms = now_ms if self._oldest_ms is None else self._oldest_ms
        return max(oldest_ms + self._retention_ms + 1, now_ms + RETENTION_PERIOD_MS)

    async def _expire_keys(self) -> int | None:
        """One step. Returns when the next step is due: now, or when the next window ends. New windows end later."""
        now_ms = self._clock.now_ms()
        try:
            expired = await self._writer.submit(repeats.Expire())
        except PopError as error:
            log.warning("removing expired keys is delayed", reason=error.sentence)
            return now_ms + KEYS_PERIOD_MS
        if expired.removed:
            self._removals.rows("expired idempotency keys", expired.removed)
            return now_ms
        self._removals.log_total()
        return max(expired.next_ms or now_ms + self._key_window_ms, now_ms + KEYS_PERIOD_MS)

    async def _purge(self) -> None:
        try:
            removed = 1
            while removed:
                removed = await self._writer.submit(PurgeDeleted())
                if removed:
                    self._removals.rows("rows of deleted topics and groups", removed)
            self._removals.log_total()
        except PopError as error:
            log.warning("removing rows of deleted topics and groups is delayed", reason=error.sentence)
            self._purge_again = self._clock.call_at(self._clock.now_ms() + RETRY_MS, self.purge)


# The log of removals: one line for each topic and run, not for each step.

LOGGED_AFTER_MS = 10 * SECOND_MS  # in a long run; a crash loses at most this much of the log


class Removals:
    """Counts removals, and logs them when a run of steps ends or has lasted for a while."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._messages: dict[str, Removed] = {}
        self._rows: dict[str, int] = {}
        self._since_ms: int | None = None

    def messages(self, removed: Removed) -> None:
        """Count old messages of a topic's queue that a step has removed."""
        name = str(removed.topic)
        before = self._messages.get(name, removed._replace(messages=0))
        self._messages[name] = Removed(
            removed.topic,
            before.messages + removed.messages,
            min(before.oldest_ms, removed.oldest_ms),
            max(before.newest_ms, removed.newest_ms),
            max(before.unread_by, removed.unread_by),
        )
        self._go_on()

    def rows(self, what: str, count: int) -> None:
        """Count rows of another kind that a step has removed."""
        self._rows[what] = self._rows.get(what, 0) + count
        self._go_on()

    def log_total(self) -> None:
        """Log a line for each topic and each kind."""
        for name, each in sorted(self._messages.items()):
            oldest, newest = utc(each.oldest_ms), utc(each.newest_ms)
            words = {"topic": name, "count": each.messages, "oldest": oldest, "newest": newest}
            if each.unread_by:
                log.warning("old messages removed, also unread ones", **words, groups=each.unread_by)
            else:
                log.info("old messages removed", **words)
        for what, count in sorted(self._rows.items()):
            log.info(f"{what} removed", count=count)
        self._messages, self._rows, self._since_ms = {}, {}, None

    def _go_on(self) -> None:
        now_ms = self._clock.now_ms()
        if self._since_ms is None:
            self._since_ms = now_ms
        elif now_ms - self._since_ms >= LOGGED_AFTER_MS:
            self.log_total()
