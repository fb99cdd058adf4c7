"""Tells a webhook what begins to need a person, and what does not need one any more.

What has to be told is stored first. So it is told after a restart as well, and of several servers one tells it. A
receiver that does not answer is asked again, later and later, and its events wait in the store.
"""

from __future__ import annotations

import asyncio

import structlog

from popserver.alerts import told
from popserver.alerts.flow import Alerts
from popserver.alerts.rules import Steady
from popserver.alerts.told import RecordAlerts, RecordTold
from popserver.alerts.webhook import Webhook
from popserver.cluster.servers import Servers
from popserver.engine.clock import Clock
from popserver.engine.reader import LogLimit, Reader
from popserver.engine.timers import DueTimer
from popserver.engine.writer import Writer
from popserver.model.errors import PopError
from popserver.model.retry import MINUTE_MS, SECOND_MS

LOOK_MS = 15 * SECOND_MS
PAUSE_FACTOR = 200  # times what a look took, at least: alerts take a small part of one core
RETRY_MS, RETRY_MS_MAX = 1 * SECOND_MS, 5 * MINUTE_MS

log = structlog.get_logger("popserver.alerts")


class AlertWatch:
    """Looks for alerts, and tells the webhook. Make it inside the running event loop."""

    def __init__(
        self, alerts: Alerts, webhook: Webhook, reader: Reader, writer: Writer, clock: Clock, servers: Servers
    ) -> None:
        self._alerts = alerts
        self._webhook = webhook
        self._reader = reader
        self._writer = writer
        self._clock = clock
        self._servers = servers
        self._steady = Steady()
        self._looker = DueTimer(clock, self._look)
        self._teller = DueTimer(clock, self._tell)
        self._retry_ms = 0  # the pause after the last failure; 0: the last event was accepted
        self._log_limit = LogLimit()

    def start(self) -> None:
        self._looker.expect(self._clock.now_ms())
        self._teller.expect(self._clock.now_ms())

    async def idle(self) -> None:
        await self._looker.idle()
        await self._teller.idle()

    async def close(self) -> None:
        """End the request that runs. What is not told yet is told after the next start, or by another server."""
        await self._webhook.close()
        await self._looker.close()
        await self._teller.close()

    async def _look(self) -> int | None:
        loop, now_ms = asyncio.get_running_loop(), self._clock.now_ms()
        began_s = loop.time()
        if self._servers.leads:
            try:
                await self._record(now_ms)
            except PopError as error:
                self._warn("no alerts were looked for", reason=error.sentence)
        return now_ms + max(LOOK_MS, round(PAUSE_FACTOR * (loop.time() - began_s) * SECOND_MS))

    async def _record(self, now_ms: int) -> None:
        found = await self._alerts.find()
        change = self._steady.next(found, await self._reader.read(told.open_keys), now_ms)
        if change.begun or change.over:
            if left_out := await self._writer.submit(RecordAlerts(change.begun, change.over)):
                self._warn(
                    "alerts are left out; too many are open or not told", left_out=left_out, limit=told.ALERTS_MAX
                )
            if not self._retry_ms:
                self._teller.expect(now_ms)

    async def _tell(self) -> int | None:
        """Tell one event. Returns when the next one is due: now, after a pause, or None if there is none."""
        now_ms = self._clock.now_ms()
        if not self._servers.leads:
            return now_ms + LOOK_MS
        try:
            event = await self._reader.read(told.next_event)
            if event is None:
                return now_ms + LOOK_MS
            failure = await self._webhook.tell(event, now_ms)
            if failure != event.failure or not failure:
                is_recorded = await self._writer.submit(RecordTold(event, failure))
                if not is_recorded:
                    return now_ms + LOOK_MS
        except PopError as error:
            self._warn("the webhook is told later", reason=error.sentence)
            return now_ms + LOOK_MS
        self._log(failure)
        if not failure:
            self._retry_ms = 0
            return now_ms
        self._retry_ms = min(max(RETRY_MS, 2 * self._retry_ms), RETRY_MS_MAX)
        return self._clock.now_ms() + self._retry_ms

    def _log(self, failure: str) -> None:
        """Log when telling begins to fail, and when it works again."""
        if failure and not self._retry_ms:
            log.warning("the webhook does not accept alerts; everything else works, and they wait", reason=failure)
        elif self._retry_ms and not failure:
            log.info("the webhook accepts alerts again", address=self._webhook.address)

    def _warn(self, event: str, **facts: object) -> None:
        if (suppressed := self._log_limit.dropped(self._clock.now_ms())) is not None:
            log.warning(event, suppressed=suppressed, **facts)
