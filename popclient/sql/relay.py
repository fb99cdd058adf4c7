"""Sends the messages of an outbox table to the broker.

Sends each at least once, under the id it was enqueued with, so the broker stores it once. Keeps the order of the outbox
within each message group.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from sqlalchemy import Connection, Engine, Row, delete, func, not_, select, update
from sqlalchemy.exc import SQLAlchemyError

from popclient._arguments import not_copied
from popclient.errors import (
    BadRequest,
    ClientClosed,
    PayloadTooLarge,
    PopError,
    PropertiesTooLarge,
    RefusedByProxy,
    Unauthorized,
    Unreachable,
)
from popclient.message import Message
from popclient.sql.tables import outbox

if TYPE_CHECKING:
    from popclient._sync.producer import Producer

# One step is one request to the broker, which stores all messages of a message group or none.
STEP_ROWS: Final = 128
STEP_BYTES: Final = 4 * 1024 * 1024
TOPIC_PAUSE: Final = 5.0  # seconds until a topic is tried again for which the broker takes no messages
PAUSE_MAX: Final = 5.0  # seconds between two tries to reach the broker or the database

# The message's own fault: trying again does not help.
_OF_THE_MESSAGE: Final = (BadRequest, PayloadTooLarge, PropertiesTooLarge)
# There is no broker, or no producer that it takes messages of.
_OF_ALL: Final = (Unreachable, ClientClosed, Unauthorized, RefusedByProxy)
_EPOCH: Final = datetime.fromtimestamp(0, UTC)

log = logging.getLogger("popclient.relay")


class Step(NamedTuple):
    """The result of one step: how many messages the broker has stored and refused, and how many wait for later."""

    moved: int
    refused: int
    left: int


class Relay:
    """Moves messages from the outbox table of `engine` to the producer's broker.

    engine: of the database with the table `popmq_outbox`. producer: a synchronous one; its namespace counts.
    poll_interval: seconds between two reads of an empty outbox.

    Inside `with` it runs in a thread of its own; `run` runs it in yours. Several relays may work on one outbox. If the
    broker refuses a message for its own fault, it stays in the table with the reason in `refusal`; the others go on.
    Messages of a refused topic wait, and are tried again every 5 s. If the producer is refused, for its credentials or
    by a proxy, the relay ends: `run` raises that, the thread logs it, and `healthy` is false.
    """

    __reduce__ = not_copied

    def __init__(self, engine: Engine, producer: Producer, *, poll_interval: float = 0.25) -> None:
        self._engine = engine
        self._producer = producer
        self._poll_interval = poll_interval
        self._resting: dict[str, float] = {}  # topic → when to try it again
        self._told: dict[str, str] = {}  # topic → why it waits, as the log says
        self._ended_by: PopError | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def move(self) -> Step:
        """One step: moves the oldest messages, at most 128 and 4 MiB.

        Raises the error that stops all of them: Unreachable, Unauthorized, or the database's own error.
        """
        with self._engine.connect() as conn:
            rows = conn.execute(_FULL.where(outbox.c.outbox_id.in_(self._next(conn)))).all()
        # Outside of any transaction: others must not wait for our locks while the broker answers.
        outcomes = self._send(rows)
        taken = [number for number, outcome in outcomes.items() if not isinstance(outcome, PopError)]
        refused = {number: each for number, each in outcomes.items() if isinstance(each, _OF_THE_MESSAGE)}
        if taken or refused:
            self._settle(taken, refused)
        for outcome in outcomes.values():
            if isinstance(outcome, _OF_ALL):
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
            except (PopError, SQLAlchemyError) as error:
                if isinstance(error, PopError) and not error.retryable:
                    self._ended_by = error
                    raise
                if str(error) != said:  # once for each reason
                    log.warning("the outbox waits: %s", error)
                said = str(error)
                pause = min(pause * 2, PAUSE_MAX)
                stop.wait(pause)
                continue
            pause = self._poll_interval
            if said:
                log.warning("the outbox does not wait any more")
                said = ""
            if not step.moved and not step.refused:
                stop.wait(pause)

    def run_once(self) -> int:
        """Moves all messages that can be moved now; returns how many. Raises as `move` does."""
        moved = 0
        while (step := self.move()).moved or step.refused:
            moved += step.moved
        return moved

    def waiting(self) -> int:
        """How many messages are still to be moved."""
        with self._engine.connect() as conn:
            return conn.execute(select(func.count()).where(outbox.c.refusal.is_(None))).scalar_one()

    def start(self) -> None:
        """Runs it in a thread of its own, until `close`."""
        self._thread = threading.Thread(target=self._run, name="popmq-relay", daemon=True)
        self._thread.start()

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
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _next(self, conn: Connection) -> list[int]:
        """The numbers of the next messages, as many as fit into one request."""
        now = time.monotonic()
        self._resting = {topic: until for topic, until in self._resting.items() if until > now}
        query = _NARROW.where(not_(outbox.c.topic.in_(list(self._resting)))) if self._resting else _NARROW
        numbers: list[int] = []
        size = 0
        for number, length in conn.execute(query):
            size += length
            if numbers and size > STEP_BYTES:
                break
            numbers.append(number)
        return numbers

    def _send(self, rows: Sequence[Row[Any]]) -> dict[int, object]:
        """The outcome of each message that was sent. Does not send those behind a failed one of their message group."""
        read = {row.outbox_id: _message(row) for row in rows}
        messages = {number: each for number, each in read.items() if isinstance(each, Message)}
        outcomes: dict[int, object] = {number: each for number, each in read.items() if number not in messages}
        held_up: set[tuple[str, str]] = set()
        readable = [row for row in rows if row.outbox_id in messages]
        for wave in _waves(readable, in_runs=self._producer._core.batches):
            tried = [row for row in wave if _group_of(row) not in held_up]
            results = self._producer.send_many([messages[row.outbox_id] for row in tried])
            for row, outcome in zip(tried, results, strict=True):
                outcomes[row.outbox_id] = outcome
                if not isinstance(outcome, PopError):
                    self._told.pop(row.topic, None)
                if isinstance(outcome, PopError) and not isinstance(outcome, _OF_THE_MESSAGE):
                    held_up.add(_group_of(row))
                    self._rest(row.topic, outcome)
        return outcomes

    def _rest(self, topic: str, failure: PopError) -> None:
        if isinstance(failure, _OF_ALL):
            return
        if self._told.get(topic) != str(failure):
            log.warning("the messages of topic %s wait: %s", topic, failure)
        self._told[topic] = str(failure)
        self._resting[topic] = time.monotonic() + TOPIC_PAUSE

    def _settle(self, taken: Sequence[int], refused: Mapping[int, object]) -> None:
        with self._engine.begin() as conn:
            if taken:
                conn.execute(delete(outbox).where(outbox.c.outbox_id.in_(taken)))
            for number, refusal in refused.items():
                log.warning("message %s of the outbox is refused: %s", number, refusal)
                conn.execute(update(outbox).where(outbox.c.outbox_id == number).values(refusal=str(refusal)))


def _waves(rows: Sequence[Row[Any]], *, in_runs: bool) -> list[list[Row[Any]]]:
    """What may be sent together. A broker without batches could store the second message of a group without the first;
    for it each wave has one message of each group."""
    if in_runs:
        return [list(rows)] if rows else []
    waves: list[list[Row[Any]]] = []
    depth: dict[tuple[str, str], int] = {}
    for row in rows:
        group = _group_of(row)
        at = depth.get(group, 0) if row.message_group else 0
        depth[group] = at + 1
        if at == len(waves):
            waves.append([])
        waves[at].append(row)
    return waves


def _group_of(row: Row[Any]) -> tuple[str, str]:
    return row.topic, row.message_group or ""


def _message(row: Row[Any]) -> Message | PopError:
    """The message of a row. Others may write to the table too: for a row that is no message, the refusal."""
    due = row.deliver_at_ms
    try:
        return Message(
            row.topic,
            row.body,
            tag=row.tag,
            keys=_texts(json.loads(row.keys or "[]"), list),
            properties=_texts(json.loads(row.properties or "{}"), dict),
            message_group=row.message_group,
            delivery_timestamp=None if due is None else _EPOCH + timedelta(milliseconds=due),
            priority=row.priority,
            trace_context=row.trace_context,
            message_id=row.message_id,
        )
    except (TypeError, ValueError, OverflowError) as error:
        return BadRequest(f"the row cannot be read: {error}")


def _texts(read: Any, kind: type) -> Any:
    """Parsed JSON, if it is of that kind and holds only texts."""
    each_of = read.values() if isinstance(read, dict) else read
    if not isinstance(read, kind) or not all(isinstance(each, str) for each in each_of):
        raise TypeError(f"{str(read)[:64]!r} is no JSON {'object' if kind is dict else 'array'} of texts")
    return read


_WAITING = outbox.c.refusal.is_(None)
_NARROW = (
    select(outbox.c.outbox_id, func.length(outbox.c.body)).where(_WAITING).order_by(outbox.c.outbox_id).limit(STEP_ROWS)
)
_FULL = select(outbox).order_by(outbox.c.outbox_id)
