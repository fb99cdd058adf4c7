"""Finds what needs a person, for operators who ask."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from popserver.alerts import rules, told
from popserver.alerts.facts import StoreForAlerts, store_for_alerts
from popserver.alerts.rules import Alert, Facts, ready_of
from popserver.alerts.told import Untold
from popserver.catalog.paused import PausedGroups
from popserver.clients.consumers import Consumers
from popserver.engine.clock import Clock
from popserver.engine.reader import Reader
from popserver.model.budget import Budget
from popserver.model.names import Resource
from popserver.model.retry import MINUTE_MS
from popserver.receiving.redeliveries import Redeliveries, hint

HINTS_MAX = 10
REMEMBERED_FACTOR = 100  # times what it took to find them, so that callers take no more than 1 % of a core, up to
REMEMBERED_S_MAX = 60.0


class Alerts:
    """What needs a person in one server and its store."""

    def __init__(
        self,
        reader: Reader,
        clock: Clock,
        budgets: Callable[[], Sequence[Budget]],
        consumers: Consumers,
        redeliveries: Redeliveries,
        paused: PausedGroups,
        clock_hints: Callable[[], Sequence[str]],
        stuck_rows: Callable[[], Awaitable[Sequence[str]]],
        file: Path | None,
        *,
        retention_ms: int,
        has_webhook: bool,
    ) -> None:
        """`clock_hints`: sentences about the clocks; `stuck_rows`: about rows that keep messages from being delivered.
        `file`: that of a SQLite database."""
        self._reader = reader
        self._clock = clock
        self._budgets = budgets
        self._consumers = consumers
        self._redeliveries = redeliveries
        self._paused = paused
        self._clock_hints = clock_hints
        self._stuck_rows = stuck_rows
        self._file = file
        self._retention_ms = retention_ms
        self._has_webhook = has_webhook
        self._finding = asyncio.Lock()
        self._found: list[Alert] = []
        self._until_s = float("-inf")
        # How many messages each group had ready, over the last minute.
        self._ready: deque[tuple[int, dict[Resource, int]]] = deque()

    async def find(self, namespace: str | None = None) -> list[Alert]:
        """What needs a person now, the most urgent first; in one namespace, or (None) in all. What is about no topic
        or group is in every namespace."""
        loop = asyncio.get_running_loop()
        async with self._finding:
            began_s = loop.time()
            if began_s >= self._until_s:
                self._found = rules.find(await self._facts())
                remembered_s = min(REMEMBERED_FACTOR * (loop.time() - began_s), REMEMBERED_S_MAX)
                self._until_s = loop.time() + remembered_s
            return [each for each in self._found if namespace is None or _is_in(each, namespace)]

    async def untold(self) -> Untold | None:
        """What the webhook does not know yet; None without a webhook."""
        return await self._reader.read(told.untold) if self._has_webhook else None

    async def _facts(self) -> Facts:
        now_ms = self._clock.now_ms()
        retrying = self._redeliveries.high(now_ms)[:HINTS_MAX]
        file = self._file
        found: StoreForAlerts = await self._reader.read(lambda conn: store_for_alerts(conn, now_ms, file, retrying))
        return Facts(
            now_ms,
            found.look.lag,
            self._growth(now_ms, ready_of(found.look.lag)),
            found.overdue_ms,
            found.servers,
            [*await self._stuck_rows(), *found.warnings, *self._clock_hints()],
            self._budgets(),
            found.dead_letters,
            found.stuck,
            self._consumers.disagreements(HINTS_MAX),
            {name: hint(name, self._redeliveries.share(group_id, now_ms)) for group_id, name in found.retrying.items()},
            found.gone,
            self._retention_ms,
            self._paused.covers,
        )

    def _growth(self, now_ms: int, ready: dict[Resource, int]) -> dict[Resource, int]:
        """How many more messages each group has ready than at the first look of the last minute."""
        self._ready.append((now_ms, ready))
        while self._ready[0][0] < now_ms - MINUTE_MS:
            self._ready.popleft()
        before = self._ready[0][1]
        return {group: count - before[group] for group, count in ready.items() if group in before}


def _is_in(alert: Alert, namespace: str) -> bool:
    return alert.namespace == namespace or not alert.has_namespace
