"""Brokers that share one Postgres and one manual clock, as servers in processes of their own would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from sqlalchemy import event

from popserver.database.database import Database
from popserver.engine.clock import ManualClock
from tests.support.running_broker import RunningBroker, running_broker, until


class SeveralBrokers:
    """`a` and `b` were there first; `one_more` joins them."""

    def __init__(self, url: str, running: AsyncExitStack) -> None:
        self.url = url
        self.clock = ManualClock()
        self._running = running
        self._all: list[RunningBroker] = []

    @property
    def a(self) -> RunningBroker:
        return self._all[0]

    @property
    def b(self) -> RunningBroker:
        return self._all[1]

    async def one_more(self, *, chart_series: int = 0) -> RunningBroker:
        broker = await self._running.enter_async_context(
            running_broker(self.url, clock=self.clock, shared=True, chart_series=chart_series)
        )
        self._all.append(broker)
        return broker

    async def advance(self, by_ms: int) -> None:
        await self.clock.advance(by_ms, self.settle)

    async def settle(self) -> None:
        """Return when all of them have done what is due."""
        for _ in range(2):
            await asyncio.gather(*(each.broker.settle() for each in self._all))

    async def know_each_other(self) -> None:
        """Until each of them knows that the others are there."""
        await until(lambda: all(len(each.broker.servers.others) == len(self._all) - 1 for each in self._all))
        await self.settle()


def silence(broker: RunningBroker) -> None:
    """As if it were killed: it does not say any more that it is there, ends nothing that is due, keeps no client."""
    inner = broker.broker
    inner.servers._closed = True
    if inner.servers._alarm is not None:
        inner.servers._alarm.cancel()
    inner.sessions.clients.close()
    inner.sessions.group_members._refresh._on_missing = lambda *_: (
        None
    )  # nor does it hear that its members were removed
    inner.maintenance._sleeper._closed = True
    inner.maintenance._sleeper._clear_alarm()


@asynccontextmanager
async def several_brokers(url: str, count: int = 2) -> AsyncIterator[SeveralBrokers]:
    """Brokers that know each other."""
    async with AsyncExitStack() as running:
        several = SeveralBrokers(url, running)
        for _ in range(count):
            await several.one_more()
        await several.know_each_other()
        yield several


@contextmanager
def notices(database: Database) -> Iterator[list[str]]:
    """The statements that tell others something."""
    said: list[str] = []

    def before(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "NOTIFY" in statement:
            said.append(statement)

    event.listen(database.writing, "before_cursor_execute", before)
    try:
        yield said
    finally:
        event.remove(database.writing, "before_cursor_execute", before)
