# Made by scripts/unasync.py from popclient/aio/relay.py. Do not edit.
"""The synchronous relay: sends the messages of an outbox table to the broker.

Sends each at least once, under the id it was enqueued with, so the broker stores it once. Keeps the order of the outbox
within each message group.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import ColumnElement, Row, delete, func, select, update

from popclient._arguments import not_copied
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
    from sqlalchemy import Connection, Engine

    from popclient._sync.producer import Producer


class Relay:
    """Moves messages from the outbox table of `engine` to the producer's broker.

    engine: of the database with the table `popmq_outbox`. producer: a synchronous one; its namespace counts.
    poll_interval: seconds between two reads of an empty outbox.

    Inside `with` it runs in a thread of its own; `run` runs it in yours. Several relays may work on one outbox. If
    the broker refuses a message for its own fault, it stays in the table with the reason in `refusal`; the others go
    on. Messages of a refused topic wait, and are tried again every 5 s. If the producer is refused, for its credentials
    or by a proxy, the relay ends: `run` raises that, the thread logs it, and `healthy` is false.
    """

    __module__ = "popclient.sql"
    __reduce__ = not_copied

    def __init__(self, engine: Engine, producer: Producer, *, poll_interval: float = 0.25) -> None:
        require_fit(engine, producer, is_async=False)
        self._engine = engine
        self._producer = producer
        self._poll_interval = poll_interval
        self._paused_topics = PausedTopics()
        self._ended_by: PopError | None = None
        self._stop = threading.Event()
        self._runner: threading.Thread | None = None

    def move(self) -> Step:
        """One step: moves the oldest messages, at most 128 and 4 MiB.

        Raises the error that stops all of them: Unreachable, Unauthorized, or the database's own error.
        """
        rows = self._oldest()
        # Outside of any transaction: others must not wait for our locks while the broker answers.
        outcomes = self._send(rows)
        taken = [number for number, outcome in outcomes.items() if not isinstance(outcome, PopError)]
        refused = {number: each for number, each in outcomes.items() if isinstance(each, OF_THE_MESSAGE)}
        if taken or refused:
            self._settle(taken, refused)
        for outcome in outcomes.values():
            if isinstance(outcome, OF_ALL):
                raise outcome
        return Step(len(taken), len(refused), len(rows) - len(taken) - len(refused))

    def run(self, stop: threading.Event | None = None) -> None:
        """Moves messages until `stop` is set. Waits for an unreachable broker or database; raises a final refusal."""
        stop, pause, said = stop or self._stop, self._poll_interval, ""
        while not stop.is_set():
            try:
                step = self.move()
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
                _wait(stop, pause)
                continue
            pause = self._poll_interval
            if said:
                log.warning("the outbox does not wait any more")
                said = ""
            if not step.moved and not step.refused:
                _wait(stop, pause)

    def run_once(self) -> int:
        """Moves all messages that can be moved now; returns how many. Raises as `move` does."""
        moved = 0
        while (step := self.move()).moved or step.refused:
            moved += step.moved
        return moved

    def waiting(self) -> int:
        """How many messages are still to be moved."""
        return self._count(WAITING)

    def refused(self) -> int:
        """How many messages the broker has refused; they stay in the table, with the reason in `refusal`."""
        return self._count(REFUSED)

    def _count(self, which: ColumnElement[bool]) -> int:
        with self._engine.connect() as conn:
            found = conn.execute(select(func.count()).select_from(outbox).where(which))
            return found.scalar_one()

    def start(self) -> None:
        """Runs it in a thread of its own, until `close`."""
        self._runner = threading.Thread(target=self._run, name="popmq-relay", daemon=True)
        self._runner.start()

    def _run(self) -> None:
        try:
            self.run()
        except PopError as refusal:
            log.error("the relay ends, and the outbox waits: %s", refusal)

    @property
    def healthy(self) -> bool:
        """Has no refusal ended it?"""
        return self._ended_by is None

    def close(self) -> None:
        """Ends the thread after its current step."""
        self._stop.set()
        if self._runner is not None:
            self._runner.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _oldest(self) -> Sequence[Row[Any]]:
        """The rows of the next step."""
        with self._engine.connect() as conn:
            found = conn.execute(FULL.where(outbox.c.outbox_id.in_(self._next(conn))))
            return found.all()

    def _next(self, conn: Connection) -> list[int]:
        """The numbers of the next messages, as many as fit into one request."""
        numbers: list[int] = []
        size = 0
        for number, length in conn.execute(self._paused_topics.next_rows()):
            size += length
            if numbers and size > STEP_BYTES:
                break
            numbers.append(number)
        return numbers

    def _send(self, rows: Sequence[Row[Any]]) -> dict[int, object]:
        """The outcome of each message that was sent. Does not send those behind a failed one of their message group."""
        read = {row.outbox_id: message_of(row) for row in rows}
        messages = {number: each for number, each in read.items() if isinstance(each, Message)}
        outcomes: dict[int, object] = {number: each for number, each in read.items() if number not in messages}
        held_up: set[tuple[str, str]] = set()
        readable = [row for row in rows if row.outbox_id in messages]
        for wave in waves(readable, in_runs=self._producer._core.batches):
            tried = [row for row in wave if group_of(row) not in held_up]
            results = self._producer.send_many([messages[row.outbox_id] for row in tried])
            for row, outcome in zip(tried, results, strict=True):
                outcomes[row.outbox_id] = outcome
                self._paused_topics.note(row.topic, outcome)
                if isinstance(outcome, PopError) and not isinstance(outcome, OF_THE_MESSAGE):
                    held_up.add(group_of(row))
        return outcomes

    def _settle(self, taken: Sequence[int], refused: Mapping[int, object]) -> None:
        with self._engine.begin() as conn:
            if taken:
                conn.execute(delete(outbox).where(outbox.c.outbox_id.in_(taken)))
            for number, refusal in refused.items():
                log.warning("message %s of the outbox is refused: %s", number, refusal)
                conn.execute(update(outbox).where(outbox.c.outbox_id == number).values(refusal=str(refusal)))


def _wait(stop: threading.Event, seconds: float) -> None:
    stop.wait(seconds)
