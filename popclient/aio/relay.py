"""The asyncio relay: sends the messages of an outbox table to the broker.

Sends each at least once, under the id it was enqueued with, so the broker stores it once. Keeps the order of the outbox
within each message group.
"""

from __future__ import annotations

# sync: import asyncio => import threading
import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import ColumnElement, Row, delete, func, select, update

from popclient._arguments import not_copied
from popclient._tasks import begin_task, finishing
from popclient.errors import ClientClosed, PopError
from popclient.message import Message
from popclient.sql.relay import (
    FULL,
    OF_ALL,
    OF_THE_MESSAGE,
    PAUSE_MAX,
    REFUSED,
    STEP_BYTES,
    WAITING,
    PausedTopics,
    Step,
    group_of,
    log,
    message_of,
    require_fit,
    waves,
)
from popclient.sql.tables import outbox

if TYPE_CHECKING:
    # sync: sqlalchemy.ext.asyncio => sqlalchemy
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from popclient.aio.producer import Producer


# sync: an asyncio one => a synchronous one
# sync: in a task of its own; `run` runs it in yours => in a thread of its own; `run` runs it in yours
# sync: the task logs it => the thread logs it
class Relay:
    """Moves messages from the outbox table of `engine` to the producer's broker.

    engine: of the database with the table `popmq_outbox`. producer: an asyncio one; its namespace counts.
    poll_interval: seconds between two reads of an empty outbox.

    Inside `async with` it runs in a task of its own; `run` runs it in yours. Several relays may work on one outbox. If
    the broker refuses a message for its own fault, it stays in the table with the reason in `refusal`; the others go
    on. Messages of a refused topic wait, and are tried again every 5 s. If the producer is refused, for its credentials
    or by a proxy, the relay ends: `run` raises that, the task logs it, and `healthy` is false.
    """

    # sync: popclient.aio => popclient.sql
    __module__ = "popclient.aio"
    __reduce__ = not_copied

    def __init__(self, engine: AsyncEngine, producer: Producer, *, poll_interval: float = 0.25) -> None:
        # sync: True => False
        require_fit(engine, producer, is_async=True)
        self._engine = engine
        self._producer = producer
        self._poll_interval = poll_interval
        self._paused_topics = PausedTopics()
        self._ended_by: PopError | None = None
        # sync: asyncio => threading
        self._stop = asyncio.Event()
        # sync: asyncio.Task[None] => threading.Thread
        self._runner: asyncio.Task[None] | None = None

    async def move(self) -> Step:
        """One step: moves the oldest messages, at most 128 and 4 MiB.

        Raises the error that stops all of them: Unreachable, Unauthorized, or the database's own error.
        """
        rows = await self._oldest()
        # Outside of any transaction: others must not wait for our locks while the broker answers.
        outcomes = await self._send(rows)
        taken = [number for number, outcome in outcomes.items() if not isinstance(outcome, PopError)]
        refused = {number: each for number, each in outcomes.items() if isinstance(each, OF_THE_MESSAGE)}
        if taken or refused:
            await self._settle(taken, refused)
        for outcome in outcomes.values():
            if isinstance(outcome, OF_ALL):
                raise outcome
        return Step(len(taken), len(refused), len(rows) - len(taken) - len(refused))

    # sync: asyncio => threading
    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Moves messages until `stop` is set. Waits for an unreachable broker or database; raises a final refusal."""
        stop, pause, said = stop or self._stop, self._poll_interval, ""
        while not stop.is_set():
            try:
                step = await self.move()
            except ClientClosed as closed:
                log.warning("the outbox waits: %s", closed)
                return
            except Exception as error:  # asyncpg's own errors are not SQLAlchemy's while it connects
                if isinstance(error, PopError) and not error.retryable:
                    self._ended_by = error
                    raise
                if str(error) != said:  # once for each reason
                    log.warning("the outbox waits: %s", error)
                said = str(error)
                pause = min(pause * 2, PAUSE_MAX)
                await _wait(stop, pause)
                continue
            pause = self._poll_interval
            if said:
                log.warning("the outbox does not wait any more")
                said = ""
            if not step.moved and not step.refused:
                await _wait(stop, pause)

    async def run_once(self) -> int:
        """Moves all messages that can be moved now; returns how many. Raises as `move` does."""
        moved = 0
        while (step := await self.move()).moved or step.refused:
            moved += step.moved
        return moved

    # sync: @finishing =>
    @finishing
    async def waiting(self) -> int:
        """How many messages are still to be moved."""
        return await self._count(WAITING)

    # sync: @finishing =>
    @finishing
    async def refused(self) -> int:
        """How many messages the broker has refused; they stay in the table, with the reason in `refusal`."""
        return await self._count(REFUSED)

    async def _count(self, which: ColumnElement[bool]) -> int:
        async with self._engine.connect() as conn:
            found = await conn.execute(select(func.count()).select_from(outbox).where(which))
            return found.scalar_one()

    # sync: a task => a thread
    # sync: begin_task(self._run()) => _thread(self._run); self._runner.start()
    # sync: _thread(self._run) => threading.Thread(target=self._run, name="popmq-relay", daemon=True)
    async def start(self) -> None:
        """Runs it in a task of its own, until `close`."""
        self._runner = begin_task(self._run())

    async def _run(self) -> None:
        try:
            await self.run()
        except PopError as refusal:
            log.error("the relay ends, and the outbox waits: %s", refusal)

    @property
    def healthy(self) -> bool:
        """Has no refusal ended it?"""
        return self._ended_by is None

    # sync: the task => the thread
    # sync: await self._runner => self._runner.join()
    async def close(self) -> None:
        """Ends the task after its current step."""
        self._stop.set()
        if self._runner is not None:
            await self._runner

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # sync: @finishing =>
    @finishing
    async def _oldest(self) -> Sequence[Row[Any]]:
        """The rows of the next step."""
        async with self._engine.connect() as conn:
            found = await conn.execute(FULL.where(outbox.c.outbox_id.in_(await self._next(conn))))
            return found.all()

    async def _next(self, conn: AsyncConnection) -> list[int]:
        """The numbers of the next messages, as many as fit into one request."""
        numbers: list[int] = []
        size = 0
        for number, length in await conn.execute(self._paused_topics.next_rows()):
            size += length
            if numbers and size > STEP_BYTES:
                break
            numbers.append(number)
        return numbers

    async def _send(self, rows: Sequence[Row[Any]]) -> dict[int, object]:
        """The outcome of each message that was sent. Does not send those behind a failed one of their message group."""
        read = {row.outbox_id: message_of(row) for row in rows}
        messages = {number: each for number, each in read.items() if isinstance(each, Message)}
        outcomes: dict[int, object] = {number: each for number, each in read.items() if number not in messages}
        held_up: set[tuple[str, str]] = set()
        readable = [row for row in rows if row.outbox_id in messages]
        for wave in waves(readable, in_runs=self._producer._core.batches):
            tried = [row for row in wave if group_of(row) not in held_up]
            results = await self._producer.send_many([messages[row.outbox_id] for row in tried])
            for row, outcome in zip(tried, results, strict=True):
                outcomes[row.outbox_id] = outcome
                self._paused_topics.note(row.topic, outcome)
                if isinstance(outcome, PopError) and not isinstance(outcome, OF_THE_MESSAGE):
                    held_up.add(group_of(row))
        return outcomes

    # sync: @finishing =>
    @finishing
    async def _settle(self, taken: Sequence[int], refused: Mapping[int, object]) -> None:
        async with self._engine.begin() as conn:
            if taken:
                await conn.execute(delete(outbox).where(outbox.c.outbox_id.in_(taken)))
            for number, refusal in refused.items():
                log.warning("message %s of the outbox is refused: %s", number, refusal)
                await conn.execute(update(outbox).where(outbox.c.outbox_id == number).values(refusal=str(refusal)))


# sync: asyncio => threading
# sync: with suppress(TimeoutError): ... seconds) => stop.wait(seconds)
async def _wait(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
