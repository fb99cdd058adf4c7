"""A broker on a manual clock, and the facts a test may wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from sqlalchemy import event, text

from popserver.broker.broker import Broker
from popserver.database import migrate
from popserver.database.check import check_integrity
from popserver.database.database import Database
from popserver.dead_letters.flow import Redrives
from popserver.engine.clock import ManualClock
from popserver.filters.tags import parse
from popserver.model.errors import PopError
from popserver.model.group import NewGroup
from popserver.model.message import Delivery, Message, SendResult, id_from_bytes
from popserver.model.names import Resource
from popserver.model.retry import Holder
from popserver.model.states import State
from popserver.progress.flow import GroupProgress
from tests.support.builders import GROUP, TOPIC, a_new_topic, messages_of

PATIENCE_S = 30.0


class TestedBroker(Broker):
    """A broker's parts, and the verbs of the wire beside them."""

    __test__ = False

    async def send(self, batch: Sequence[Message], client_id: str = "") -> list[SendResult | PopError]:
        return await self.producing.sending.send(batch, client_id)

    async def receive(self, group: Resource, topic: Resource, **more: Any) -> list[Delivery]:
        return await self.consuming.polls.receive(group, topic, **more)

    async def ack(self, group: Resource, topic: Resource, handles: Sequence[str], *more: Any) -> list[PopError | None]:
        return await self.consuming.settling.ack(group, topic, handles, *more)

    async def change_invisible(
        self, group: Resource, topic: Resource, handle: str, duration_ms: int, **more: Any
    ) -> str:
        return await self.consuming.settling.change_invisible(group, topic, handle, duration_ms, **more)

    async def forward_to_dead_letter_queue(
        self, group: Resource, topic: Resource, handle: str, message_id: str = ""
    ) -> None:
        await self.consuming.settling.forward(group, topic, handle, message_id)

    def withdraw(self, granted: Sequence[Delivery]) -> None:
        self.sessions.hold_release.cancel_delivery(granted)

    def orphan(self, granted: Sequence[Delivery]) -> None:
        self.sessions.hold_release.abandon_holds([each.receipt_handle for each in granted])

    def progress(self) -> GroupProgress:
        seen = self.sessions.clients, self.sessions.group_members, self.servers
        return GroupProgress(
            self.engine.reader, self.engine.writer, self.catalog, self.engine.clock, self.paused, *seen
        )

    def redrives(self) -> Redrives:
        return Redrives(self.engine.reader, self.engine.writer)


class RunningBroker:
    """The broker's verbs with a test's defaults: topic `orders`, group `billing`, client `c1`."""

    def __init__(self, broker: TestedBroker, clock: ManualClock) -> None:
        self.broker = broker
        self.clock = clock

    async def topic(self, name: Resource = TOPIC, *, queues: int = 1) -> None:
        await self.broker.catalog.create_topic(a_new_topic(name, queues=queues))

    async def group(self, name: Resource = GROUP, **more: Any) -> None:
        await self.broker.catalog.create_group(NewGroup(name, **more))

    async def send(self, batch: int | Sequence[Message] = 1, **more: Any) -> list[SendResult]:
        """Store messages; a refusal fails the test."""
        outcomes = await self.broker.send(messages_of(batch, **more) if isinstance(batch, int) else batch)
        results = [each for each in outcomes if isinstance(each, SendResult)]
        assert len(results) == len(outcomes), outcomes
        return results

    async def receive(
        self,
        batch_size: int = 32,
        *,
        group: Resource = GROUP,
        topic: Resource = TOPIC,
        wanted: str = "*",
        invisible_ms: int = 30_000,
        push: bool = False,
        client_id: str = "c1",
        poll_ms: int = 0,
        attempt_id: str | None = None,
    ) -> list[Delivery]:
        return await self.broker.receive(
            group,
            topic,
            wanted=parse(wanted),
            batch_size=batch_size,
            invisible_ms=invisible_ms,
            holder=Holder.PUSH if push else Holder.SIMPLE,
            client_id=client_id,
            poll_until_ms=self.clock.now_ms() + poll_ms,
            attempt_id=attempt_id,
        )

    async def poll(self, *, poll_ms: int = 15_000, **more: Any) -> asyncio.Task[list[Delivery]]:
        """A long poll that has parked."""
        parked = self.parked
        task = asyncio.create_task(self.receive(poll_ms=poll_ms, **more))
        await until(lambda: self.parked > parked or task.done())
        assert not task.done(), await task
        return task

    async def ack(self, *deliveries: Delivery, group: Resource = GROUP, topic: Resource = TOPIC) -> list[Any]:
        return await self.broker.ack(group, topic, [each.receipt_handle for each in deliveries])

    async def change(self, held: Delivery | str, duration_ms: int, *, give_back: bool = False) -> str:
        handle = held if isinstance(held, str) else held.receipt_handle
        return await self.broker.change_invisible(GROUP, TOPIC, handle, duration_ms, give_back=give_back)

    async def advance(self, by_ms: int) -> None:
        await self.clock.advance(by_ms, self.broker.settle)

    @property
    def parked(self) -> int:
        return self.broker.engine.wakeups.parked

    async def query(self, statement: str, **parameters: Any) -> list[Any]:
        return await self.broker.engine.reader.read(lambda conn: list(conn.execute(text(statement), parameters).all()))

    async def states(self, group: Resource = GROUP) -> dict[str, State]:
        """Every message's state in the group."""
        rows = await self.query(
            "SELECT message_id, state FROM message_state WHERE consumer_group = :name AND topic NOT LIKE '%DLQ%'"
            " ORDER BY message_key",
            name=group.name,
        )
        return {id_from_bytes(bytes(row.message_id)): State(row.state) for row in rows}


@asynccontextmanager
async def running_broker(
    url: str = "sqlite://",
    *,
    auto_create: bool = True,
    clock: ManualClock | None = None,
    shared: bool = False,
    long_polling: bool = True,
    chart_series: int = 0,
) -> AsyncIterator[RunningBroker]:
    """A broker that runs as long as the context; what it leaves must be sound. `shared`: beside others."""
    clock = clock or ManualClock()
    database = Database(url, durability="relaxed")
    migrate.upgrade(database)
    broker = TestedBroker(
        database,
        clock,
        auto_create=auto_create,
        shared=shared,
        long_polling=long_polling,
        chart_series_max=chart_series,
    )
    broker.engine.writer.start()
    await broker.start()
    try:
        yield RunningBroker(broker, clock)
        async with asyncio.timeout(PATIENCE_S):
            await broker.settle()
        await broker.engine.reader.read(check_integrity)
    finally:
        async with asyncio.timeout(PATIENCE_S):
            await broker.stop()
        database.close()


async def until(fact: Callable[[], bool]) -> None:
    """Return as soon as the fact holds; fail when it never does."""
    async with asyncio.timeout(PATIENCE_S):
        while not fact():  # noqa: ASYNC110 - the facts of a broker have no event of their own
            await asyncio.sleep(0.001)


@contextmanager
def watched(database: Database, word: str | tuple[str, ...], act: Any) -> Iterator[None]:
    """Call `act` in the writer's thread before each statement that starts with `word` (or one of them)."""

    def before(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(word):
            act()

    event.listen(database.writing, "before_cursor_execute", before)
    try:
        yield
    finally:
        event.remove(database.writing, "before_cursor_execute", before)


@contextmanager
def rollbacks_of(broker: RunningBroker) -> Iterator[list[str]]:
    """The transactions that the broker's writer has had to give up."""
    given_up: list[str] = []

    def before(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("ROLLBACK"):
            given_up.append(statement)

    event.listen(broker.broker.engine.database.writing, "before_cursor_execute", before)
    try:
        yield given_up
    finally:
        event.remove(broker.broker.engine.database.writing, "before_cursor_execute", before)


def unheard_commit(broker: Broker) -> None:
    """The next COMMIT takes effect, but its answer is lost."""
    commit = broker.engine.writer._commit

    def once(tx: Any, *more: Any) -> None:
        broker.engine.writer._commit = commit  # type: ignore[method-assign]
        tx.conn.exec_driver_sql("COMMIT")
        commit(tx, *more)

    broker.engine.writer._commit = once  # type: ignore[method-assign, assignment]


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    return [each.stored.message.message_id for each in deliveries]
