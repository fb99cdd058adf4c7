"""Group commit: the only way to change the store.

All waiting requests run together in one transaction of set-based statements. They are answered after its commit, never
before. The event loop collects requests, and a separate thread runs the transaction, with two switches per batch.

If a batch fails before its commit, it is rolled back and runs again in halves, until only the failing request is
refused. If the outcome of COMMIT is unknown, nothing runs again: the requests get `Internal`, and their repetition is
recognized as a duplicate.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import traceback
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError

from popserver.database.database import Database, commit_error, is_serialization_failure, plain_error
from popserver.database.notifications import hashes_of
from popserver.database.statement import execute_text
from popserver.engine.batch import ENOUGH, BatchDelay, BatchEntry, BatchOutcome, BatchResult
from popserver.engine.clock import Clock
from popserver.engine.meters import Meters, now_s
from popserver.engine.transaction import (
    AFTER_RETRIES,
    POLLING_PHASES,
    FinishOrder,
    Outdated,
    Phase,
    RepeatedId,
    Request,
    Transaction,
    lock,
)
from popserver.engine.wakeups import Effects
from popserver.model.budget import Budget
from popserver.model.errors import CommitUnknown, Internal, PopError, TooManyRequests

BATCH_REQUESTS_MAX = 512
BATCH_BYTES_MAX = 32 * 1024 * 1024
BATCH_ANSWERS_MAX = 4_096  # messages; bodies of small ones are read before their sizes are counted
LOCK_TRIES, LOCK_PAUSE_S = 5, 0.02  # of a request that another server's lock refuses
TRIES = 3  # of a batch that the database rolls back in favour of another transaction

S = TypeVar("S")

log = structlog.get_logger("popserver.writer")


class Writer:
    """Owns the writing connection and its thread."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        backlog: Budget,
        answer_capacity: Callable[[], int],
    ) -> None:
        """`backlog` counts the bytes of requests that are not answered yet.

        `answer_capacity` returns how many bytes of bodies a transaction may read.
        """
        self._database = database
        self._begin = database.begin_statement
        self._has_other_writers = database.is_shared
        self._clock = clock
        self.effects = Effects()
        # Returns the notification of a transaction to other servers; called in the writer's thread. None: one server.
        self.announcement: Callable[[Transaction], str] | None = None
        self._backlog = backlog
        self._answer_capacity = answer_capacity
        self.meters = Meters()
        self._batch_bytes = 0  # the part of the backlog that is being stored
        self.batch_began_s: float | None = None  # in the event loop's time; None while no batch runs
        self._waiting: list[BatchEntry] = []
        self._batches: queue.SimpleQueue[list[BatchEntry] | None] = queue.SimpleQueue()
        self._busy = False  # from the first waiting request until no request waits or runs
        self._delay = BatchDelay()
        self._alarm: asyncio.Handle | None = None  # while a batch waits for more
        self._idle = asyncio.Event()
        self._idle.set()
        self._conn: Connection | None = None
        self._memory: dict[type[Any], Any] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="popmq-writer", daemon=True)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, request: Request[S], *, size: int = 0, answers: int = 0, frames: int = 0) -> asyncio.Future[S]:
        """Carry out one request. Cancelling the future cancels only the answer, not the request.

        The future gets the result after the commit, or the `PopError` of the refusal. `size` is the number of bytes
        that the request stores, `answers` the most messages that its answer may have, and `frames` the most frames if
        each of them is sent as one. A request with a size is refused (`TooManyRequests`) if it does not fit into the
        backlog: the store is slower than the senders, and the backlog must not fill the memory.
        """
        answer: asyncio.Future[S] = self._loop.create_future()
        if self._closed:
            answer.set_exception(Internal("the server is stopping; nothing was done, repeat the request"))
            return answer
        # A request that is larger than the whole backlog is stored alone.
        size = min(size, self._backlog.limit)
        if size and not self._backlog.take(size):
            answer.set_exception(self._backlog.refusal(f"another {size} bytes to store"))
            return answer
        self._waiting.append(BatchEntry(request, size, answers, frames, answer))
        if not self._busy:
            self._busy = True
            self._idle.clear()
            # One turn of the event loop later, so that requests that arrived together are in one batch.
            self._loop.call_soon(self._dispatch)
        elif self._alarm is not None and len(self._waiting) == ENOUGH:
            self._alarm.cancel()
            self._alarm = self._loop.call_soon(self._dispatch)
        return answer

    async def submit_again(self, request: Request[S], *, size: int = 0) -> S:
        """Carry out a request that waits for no lock; repeat it if it is refused because another server has one."""
        for tries_left in reversed(range(LOCK_TRIES)):
            try:
                return await self.submit(request, size=size)
            except TooManyRequests:
                if not tries_left:
                    raise
                await asyncio.sleep(LOCK_PAUSE_S)
        raise AssertionError("the last try returns or raises")

    async def idle(self) -> None:
        """Return when no request waits or runs."""
        # In a loop, because another task that woke at the same time may have submitted a request first.
        while not self._idle.is_set():
            await self._idle.wait()

    async def close(self) -> None:
        """Carry out the waiting requests, then end the thread and close its connection."""
        await self.idle()
        self._closed = True
        self._batches.put(None)
        await asyncio.to_thread(self._thread.join)

    def _dispatch(self) -> None:
        """Give a batch to the thread, or wait a moment for requests that will probably arrive."""
        if self._delay.gathers and self._alarm is None:
            wait_s = self._delay.wait_s(len(self._waiting), self._loop.time())
            if wait_s:
                self._alarm = self._loop.call_later(wait_s, self._dispatch)
                return
        self._alarm = None
        if len(self._waiting) == 1:
            batch, self._waiting = self._waiting, []
        else:
            batch = self._take()
        self._batch_bytes = sum(entry.size for entry in batch)
        if len(batch) > 1 or self._delay.gathers:
            self._delay.started(len(batch), self._loop.time(), frames=sum(entry.frames for entry in batch))
        self.batch_began_s = self._loop.time()
        requests = self.meters.requests
        requests.counts[bisect_left(requests.limits, len(batch))] += 1
        requests.total += len(batch)
        self._batches.put(batch)

    def _take(self) -> list[BatchEntry]:
        """The next batch: the first request, and all others that fit. So small sends do not wait behind large ones."""
        batch: list[BatchEntry] = []
        left: list[BatchEntry] = []
        size, answers = 0, 0
        for index, entry in enumerate(self._waiting):
            if len(batch) == BATCH_REQUESTS_MAX:
                left += self._waiting[index:]
                break
            too_much = size + entry.size > BATCH_BYTES_MAX or answers + entry.answers > BATCH_ANSWERS_MAX
            if batch and too_much and (entry.size or entry.answers):
                left.append(entry)
                continue
            size += entry.size
            answers += entry.answers
            batch.append(entry)
        self._waiting = left
        return batch

    def _answer(self, result: BatchResult) -> None:
        took, taken_s = self.meters.transactions, self._loop.time() - (self.batch_began_s or self._loop.time())
        took.counts[bisect_left(took.limits, taken_s)] += 1
        took.total += taken_s
        self.batch_began_s = None
        if self._batch_bytes:
            self._backlog.give_back(self._batch_bytes)
        if result.ready_topics or result.ready_lite or result.invalidations or result.due:
            self._announce(result)
        for entry, answer in result.outcomes:
            if entry.answer.done():
                continue
            if isinstance(answer, PopError):
                entry.answer.set_exception(answer)
            else:
                entry.answer.set_result(answer)
        if self._waiting:
            self._loop.call_soon(self._dispatch)
        else:
            self._busy = False
            self._idle.set()

    def _announce(self, result: BatchResult) -> None:
        try:
            # Nearly all transactions have effects of one kind, so there is a call for each kind only if it is needed.
            if result.ready_topics:
                self.effects.ready(dict.fromkeys(result.ready_topics))
            if result.ready_lite:
                self.effects.ready(hashes_of(result.ready_lite))
            if result.invalidations:
                self.effects.invalidations(result.invalidations)
            if result.due:
                self.effects.due(result.due)
        except Exception:  # noqa: BLE001 - the requests are committed, and their callers wait for the answer
            log.error("an effect of a commit failed", exception=traceback.format_exc())

    # From here on, code runs in the writer's thread.

    def _work(self) -> None:
        while (batch := self._batches.get()) is not None:
            result = BatchResult()
            try:
                self._run(batch, result)
            except BaseException:  # noqa: BLE001 - the thread must live
                log.error("the writer failed", exception=traceback.format_exc())
                self._disconnect()
                result.fail(batch, Internal())
            self._loop.call_soon_threadsafe(self._answer, result)
        self._disconnect()

    def _run(
        self, batch: Sequence[BatchEntry], result: BatchResult, *, careful: bool = False, tries: int = TRIES
    ) -> None:
        """Run the batch as one transaction; on failure again in halves."""
        try:
            conn = self._conn or self._connect()
            execute_text(conn, self._begin)
        except DBAPIError as error:
            if error.connection_invalidated:
                self._disconnect()
                if tries > 1:
                    # A lost connection is replaced, because nothing has run on it yet.
                    self._run(batch, result, careful=careful, tries=tries - 1)
                    return
            # No request caused this, so halves would fail too, and each would wait as long for a locked file.
            result.fail(batch, self._plain(error))
            return
        except PopError as error:
            result.fail(batch, error)
            return
        tx = Transaction(conn, *self._clock.times(), careful, self._has_other_writers, memory=self._memory)
        if any(entry.answers for entry in batch):
            tx.answer_bytes = self._answer_capacity()
        try:
            outcomes = _execute(tx, batch)
        except Exception as error:  # noqa: BLE001
            self._rolled_back(error)
            self._run_again(batch, result, error, careful=careful, tries=tries)
        else:
            self._commit(tx, outcomes, result)

    def _run_again(
        self, batch: Sequence[BatchEntry], result: BatchResult, error: Exception, *, careful: bool, tries: int
    ) -> None:
        """Run the batch again, whole or in halves, or refuse it: depending on the error of its transaction."""
        if isinstance(error, RepeatedId) or (isinstance(error, IntegrityError) and not careful):
            # A repeated message id, or probably one: the careful run searches for the ids before it inserts.
            self._run(batch, result, careful=True)
        elif isinstance(error, Outdated):
            self._run(batch, result, careful=careful, tries=tries)
        elif not isinstance(error, DBAPIError):
            verbs = sorted({entry.request.operation.__name__ for entry in batch})
            log.error("a request failed", verbs=verbs, exception="".join(traceback.format_exception(error)))
            self._run_halves(batch, result, Internal(), careful=careful)
        elif self._conn is None and not isinstance(error, IntegrityError):
            result.fail(batch, self._plain(error))
        elif is_serialization_failure(error) and tries > 1:
            self._run(batch, result, careful=careful, tries=tries - 1)
        else:
            self._run_halves(batch, result, self._plain(error), careful=careful)

    def _run_halves(self, batch: Sequence[BatchEntry], result: BatchResult, error: PopError, *, careful: bool) -> None:
        if len(batch) == 1:
            result.fail(batch, error)
            return
        middle = len(batch) // 2
        self._run(batch[:middle], result, careful=careful)
        self._run(batch[middle:], result, careful=careful)

    def _commit(self, tx: Transaction, outcomes: Sequence[BatchOutcome], result: BatchResult) -> None:
        began_s, commits = now_s(), self.meters.commits
        try:
            if self.announcement is None:
                execute_text(tx.conn, "COMMIT")
            else:
                waits = not tx.has_written and any(each.entry.request.phase not in POLLING_PHASES for each in outcomes)
                self._database.commit(tx.conn, self.announcement(tx), waits=waits)
            took_s = now_s() - began_s
            commits.counts[bisect_left(commits.limits, took_s)] += 1
            commits.total += took_s
            for each in tx.after_commit:
                each()
        except (DBAPIError, CommitUnknown) as error:
            # It is unknown whether the transaction is stored, and the connection may be broken.
            self._disconnect()
            log.error("a commit failed", reason=self._unknown(error, None).sentence)
            # The effects are still announced, because the rows may be stored. An unneeded wake-up does no harm.
            outcomes = [each._replace(result=self._unknown(error, each.result)) for each in outcomes]
        result.outcomes += outcomes
        result.ready_topics |= tx.ready_topics
        for topic_id, lite_topics in tx.ready_lite.items():
            result.ready_lite.setdefault(topic_id, set()).update(lite_topics)
        result.invalidations |= tx.invalidations
        for kind, at_ms in tx.due.items():
            result.due[kind] = min(at_ms, result.due.get(kind, at_ms))

    def _unknown(self, error: DBAPIError | CommitUnknown, result: object) -> PopError:
        return commit_error(error, self._database.name, result)

    def _connect(self) -> Connection:
        self._conn = self._database.connect_writer()
        return self._conn

    def _rolled_back(self, cause: BaseException) -> None:
        """Roll the failed transaction back. If that fails too, drop the connection."""
        lost = isinstance(cause, DBAPIError) and cause.connection_invalidated
        try:
            if lost or self._conn is None:
                self._disconnect()
            else:
                self._conn.exec_driver_sql("ROLLBACK")
        except DBAPIError:
            # On a full disk SQLite rolls the transaction back by itself, and then ROLLBACK fails.
            if self._conn is not None and not self._database.has_rolled_back(self._conn):
                self._disconnect()

    def _disconnect(self) -> None:
        if self._conn is not None and not self._database.is_memory:
            self._conn.invalidate()
            self._conn.close()
        self._conn = None
        self._memory.clear()

    def _plain(self, error: DBAPIError) -> PopError:
        return plain_error(error, self._database.name)


def _execute(tx: Transaction, batch: Sequence[BatchEntry]) -> list[BatchOutcome]:
    """Call each operation once with all its requests, in the order of the phases."""
    if naming := [entry.request for entry in batch if entry.request.names_locks]:
        lock(tx, naming)
    by_operation: dict[tuple[Phase, str], list[BatchEntry]] = {}
    for entry in batch:
        by_operation.setdefault(entry.request.sort_key, []).append(entry)
    outcomes: list[BatchOutcome] = []
    for sort_key in sorted(by_operation):
        if sort_key[0] in AFTER_RETRIES:
            tx.finish(FinishOrder.RETRIES)
        entries = by_operation[sort_key]
        results = entries[0].request.operation(tx, [entry.request for entry in entries])
        outcomes += map(BatchOutcome, entries, results)
    if tx.finishers:
        tx.finish()
    return outcomes
