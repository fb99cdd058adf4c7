"""Watches the system clock: logs when it was set, lets the server time follow it, and doubts large jumps.

A clock that jumps ahead makes all messages old at once. So the server doubts a jump beyond a limit: retention uses the
time before the jump until an operator confirms the clock, or the server has run for an hour and the jump was not taken
back. A jump between two runs looks the same as a long stop, so it is doubted too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from popserver.cluster.sql import ahead_ms as ahead_ms_of_servers
from popserver.cluster.sql import clock_ms, newest_heartbeat_ms
from popserver.engine.clock import APART_MS, SLOWER_AFTER_A_STEP, Alarm, Clock, SystemClock
from popserver.engine.reader import Reader
from popserver.engine.transaction import Read
from popserver.engine.writer import Writer
from popserver.maintenance import clock_notes
from popserver.maintenance.clock_notes import DOUBT_MS, Note, Reading
from popserver.members.locks import newest_lock_ms
from popserver.messages.seek import newest_stored_at_ms
from popserver.model.errors import PopError
from popserver.model.retry import HOUR_MS, MINUTE_MS, SECOND_MS
from popserver.model.times import span, utc

JUMP_MS_MAX = 1 * HOUR_MS
CHECK_MS = 10 * SECOND_MS
NOTE_MS_MAX = 5 * MINUTE_MS
LOG_AGAIN_MS = 10 * MINUTE_MS  # between warnings while a jump is doubted or the clocks differ

log = structlog.get_logger("popserver.clock")


class Timekeeper:
    """Watches the system clock. If the server has a manual clock, it only starts that clock."""

    def __init__(
        self,
        reader: Reader,
        writer: Writer,
        clock: Clock,
        stepped: Callable[[], None],
        *,
        shared: bool,
        jump_ms_max: int,
        retention_ms: int,
    ) -> None:
        """`stepped` is called when the system clock was set or a jump is accepted: messages may be due or old.

        A jump of more than `jump_ms_max` (0: no limit), or of half the retention, is doubted. `shared`: the system
        clock is the database's clock, which `Members` follows.
        """
        self._reader = reader
        self._writer = writer
        self._any_clock = clock
        self._clock = clock if isinstance(clock, SystemClock) else None
        self._stepped = stepped
        self._shared = shared
        self._jump_ms_max = min(jump_ms_max, retention_ms // 2) if retention_ms else jump_ms_max
        self._note_ms = min(NOTE_MS_MAX, self._jump_ms_max // 4 or NOTE_MS_MAX)
        self._believed_at_ms = 0  # in server time; while a jump is doubted
        self._confirmed = 0
        self._noted_at_ms = 0
        self._logged_at_ms: int | None = None
        self._alarm: Alarm | None = None
        self._check_task: asyncio.Task[None] | None = None
        # When the alarm was set: in the event loop's time, which stops while the machine sleeps, and in server time.
        self._set_at = 0.0, 0

    async def start(self) -> None:
        """Set the server's clock to the system clock, or to the other servers' time, but never before a stored time.

        This must come first: it decides what is due and what is old.
        """
        before = await self._writer.submit(Read(clock_notes.last))
        if self._clock is not None and self._shared:
            await self._start_beside_others(self._clock)
        # Through the writer: a server that may not write to this database must not report that it is ready.
        newest_ms = max([await self._writer.submit(Read(each)) for each in _NEWEST])
        self._any_clock.start_at_least(newest_ms)
        if (clock := self._clock) is None:
            return
        clock.start_at_least(0 if before is None else before.server_ms)
        self._compare(clock, before or Reading(newest_ms, newest_ms))
        await self._note(clock)
        self._log_hints(clock)
        self._set_alarm(clock)

    async def close(self) -> None:
        """Store a reading of the clocks, if the database still answers."""
        if self._alarm is None or self._clock is None:
            return
        self._alarm.cancel()
        if self._check_task is not None:
            await asyncio.gather(self._check_task, return_exceptions=True)
            self._alarm.cancel()
        try:
            await self._note(self._clock)
        except PopError as error:
            log.warning("cannot store the time of the stop", reason=error.sentence)

    async def check(self) -> None:
        """Check the system clock."""
        if (clock := self._clock) is None:
            return
        if not self._shared:
            clock.follow(clock.wall_ms)
        if step_ms := clock.take_step():
            self._step(clock, step_ms)
        if clock.doubted_ms and clock.now_ms() >= self._believed_at_ms:
            log.warning(
                "the jump of the system clock is believed now: old messages are removed", by=span(clock.doubted_ms)
            )
            clock.doubted_ms = 0
            self._noted_at_ms = 0
            self._stepped()
        # While this server doubts a jump, another server may have a confirmation.
        if clock.doubted_ms or clock.now_ms() - self._noted_at_ms >= self._note_ms:
            await self._note(clock)
        if self._logged_at_ms is None or clock.now_ms() - self._logged_at_ms >= LOG_AGAIN_MS:
            self._log_hints(clock)

    async def confirm(self) -> str:
        """An operator confirms the system clock. Returns a sentence about the effect."""
        clock = self._clock
        if clock is None:
            return "this server runs on a manual clock"
        doubted_ms = clock.doubted_ms
        await self._note(clock, confirms=True)
        if not doubted_ms:
            return "no jump of the system clock was doubted"
        log.warning("the system clock is confirmed: old messages are removed", jump=span(doubted_ms))
        return f"the jump of {span(doubted_ms)} is confirmed: messages that are old by the system clock are removed now"

    def hints(self) -> list[str]:
        """Sentences about the clocks for an operator; empty if all is well."""
        clock = self._clock
        return [] if clock is None else _sentences(clock, self._believed_at_ms)

    async def _start_beside_others(self, clock: SystemClock) -> None:
        await self._reader.read(lambda conn: clock.start_at(lambda: clock_ms(conn)))
        ahead_ms = await self._reader.read(lambda conn: ahead_ms_of_servers(conn, clock.system_ms()))
        if ahead_ms is not None:
            await self._reader.read(lambda conn: clock.start_at(lambda: clock_ms(conn), ahead_ms))

    def _compare(self, clock: SystemClock, before: Reading) -> None:
        """Compare the system clock with the reading of the last stop, to find a jump while the server was stopped."""
        self._confirmed = before.confirmed
        if not self._jump_ms_max:
            return
        away_ms = clock.system_ms() - before.system_ms if before.system_ms else 0
        if away_ms > self._jump_ms_max:
            self._doubt(clock, before.doubted_ms + away_ms, DOUBT_MS)
        else:
            # A clock that was set back takes back a doubted jump.
            self._doubt(clock, max(0, before.doubted_ms + min(0, away_ms)), before.doubt_left_ms)

    def _step(self, clock: SystemClock, step_ms: int) -> None:
        log.warning("the system clock was set", by=_signed(step_ms), now=utc(clock.system_ms()))
        if clock.doubted_ms or (self._jump_ms_max and step_ms > self._jump_ms_max):
            self._doubt(clock, max(0, clock.doubted_ms + step_ms), DOUBT_MS)
        self._noted_at_ms, self._logged_at_ms = 0, None
        self._stepped()

    def _doubt(self, clock: SystemClock, doubted_ms: int, left_ms: int) -> None:
        clock.doubted_ms = doubted_ms
        self._believed_at_ms = clock.now_ms() + left_ms

    async def _note(self, clock: SystemClock, *, confirms: bool = False) -> None:
        left_ms = max(0, self._believed_at_ms - clock.now_ms()) if clock.doubted_ms else 0
        reading = Reading(clock.system_ms(), clock.now_ms(), clock.doubted_ms, left_ms, self._confirmed)
        written = await self._writer.submit(Note(reading, confirms))
        self._noted_at_ms = clock.now_ms()
        if written.confirmed != self._confirmed:
            self._confirmed = written.confirmed
            clock.doubted_ms = 0
            self._stepped()

    def _log_hints(self, clock: SystemClock) -> None:
        for sentence in _sentences(clock, self._believed_at_ms):
            log.warning(sentence)
            self._logged_at_ms = clock.now_ms()

    def _set_alarm(self, clock: SystemClock) -> None:
        self._set_at = asyncio.get_running_loop().time(), clock.now_ms()
        self._alarm = clock.call_at(clock.now_ms() + CHECK_MS, lambda: self._begin_check(clock))

    def _begin_check(self, clock: SystemClock) -> None:
        self._check_task = asyncio.get_running_loop().create_task(self._check_and_repeat(clock))

    async def _check_and_repeat(self, clock: SystemClock) -> None:
        set_s, set_ms = self._set_at
        slept_ms = clock.now_ms() - set_ms - (asyncio.get_running_loop().time() - set_s) * 1_000
        try:
            if slept_ms > APART_MS:
                self._stepped()  # the machine slept, so all timers are late
            await self.check()
        except PopError as error:
            log.warning("cannot store the reading of the clocks", reason=error.sentence)
        finally:
            self._check_task = None
            self._set_alarm(clock)


def _sentences(clock: SystemClock, believed_at_ms: int) -> list[str]:
    found = []
    system_ms, ahead_ms = clock.system_ms(), clock.ahead_ms()
    if ahead_ms >= APART_MS:
        meet_ms = system_ms + round(ahead_ms / SLOWER_AFTER_A_STEP)
        found.append(
            f"server time is {_to_the_second(ahead_ms)} ahead of the system clock; it runs slower until they meet, at"
            f" {utc(meet_ms)}: until then holds and retry intervals last a quarter longer"
            " (to set it at once, stop the server and run: popmq db clock --reset)"
        )
    if ahead_ms <= -APART_MS:
        found.append(
            f"server time is {_to_the_second(-ahead_ms)} behind the system clock, which was set; new messages get times"
            " that are too early; restart the server (if several servers share a database, all of them at once)"
        )
    if clock.doubted_ms:
        found.append(
            f"the system clock is {_to_the_second(clock.doubted_ms)} ahead of its last reading: the server was stopped"
            " for that long, or the clock is wrong; the server removes no old messages until"
            f" {utc(system_ms + max(0, believed_at_ms - clock.now_ms()))}, unless you run: popmq clock confirm"
        )
    return found


def _to_the_second(ms: int) -> str:
    return span(ms - ms % SECOND_MS)


def _signed(ms: int) -> str:
    return f"{'+' if ms > 0 else '-'}{span(abs(ms))}"


_NEWEST = (newest_stored_at_ms, newest_heartbeat_ms, newest_lock_ms)
