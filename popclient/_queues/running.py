"""Where a queue consumer's listener runs: in daemon threads, or in tasks of the event loop (requirement E1)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from inspect import isawaitable
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from popclient._engine.clock import Clock
from popclient._engine.interceptors import InterceptorChain
from popclient._queues.listener import Context, Outcome, consumption_of, status_of
from popclient._session import log
from popclient.message import MessageView

CONSUME_START_TIME = "CONSUME_START_TIME"  # property: when the listener was called, epoch milliseconds (requirement E6)

KEEP_ALIVE: Final = 60.0  # seconds without work (requirement E1)


class Rejected(Exception):
    """The pool takes nothing now; what was handed in is still the caller's."""


class Job:
    """One call of the listener to be made.

    begin: asked right before the call, where the listener runs; False calls it off.
    ended: told in the event loop how it ended, None if it was called off.
    """

    __slots__ = ("begin", "context", "ended", "messages")

    def __init__(
        self,
        messages: Sequence[MessageView],
        context: Context,
        begin: Callable[[], bool],
        ended: Callable[[Outcome | None], None],
    ) -> None:
        self.messages = tuple(messages)
        self.context = context
        self.begin = begin
        self.ended = ended


class Calling:
    """How the listener is called: the same for threads and tasks.

    consume: takes the messages and the context. consume_timeout: seconds.
    """

    def __init__(
        self, consume: Callable[..., Any], consume_timeout: float, interceptors: InterceptorChain, clock: Clock
    ) -> None:
        self.consume = consume
        self._consume_timeout = consume_timeout
        self._interceptors = interceptors
        self._clock = clock

    def begin(self, job: Job) -> float | None:
        """When the call begins; None if it is called off."""
        if not job.begin():
            return None
        stamp = str(self._clock.epoch_ms())
        for message in job.messages:
            message._wire.user_properties[CONSUME_START_TIME] = stamp
        self._interceptors.before_consume(job.messages)
        return self._clock.now()

    def end(self, job: Job, began: float, returned: object, error: BaseException | None) -> Outcome:
        if error is not None and not isinstance(error, asyncio.CancelledError):
            log.error("the listener failed with %s", job.messages[0], exc_info=error)
        status = status_of(returned, job.context)
        consumption = consumption_of(returned, status, error, self._clock.now() - began, self._consume_timeout)
        self._interceptors.after_consume(job.messages, consumption)
        return Outcome(status, consumption)


class Runner(Protocol):
    """Calls the listener, up to so many times at once; what is more waits, in order."""

    def run(self, job: Job, /) -> None:
        """Has the job done; raises Rejected if it is not taken."""

    def is_inside(self) -> bool:
        """Is whoever asks the listener?"""

    def stop(self) -> None:
        """No further job will come."""


class Threads:
    """Daemon threads named after the group, started when first needed, at most `most`.

    post: has the event loop call something. least: so many stay when there was nothing to do for a minute; None: all.
    """

    def __init__(
        self,
        group: str,
        most: int,
        calling: Calling,
        post: Callable[[Callable[[], None]], None],
        least: int | None = None,
        keep_alive: float = KEEP_ALIVE,
    ) -> None:
        self._group = group
        self._most = most
        self._least = most if least is None else least
        self._keep_alive = keep_alive
        self._started = 0
        self._mutex = threading.Lock()  # a thread that leaves must not be counted on
        self._calling = calling
        self._post = post
        self._work: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._unfinished = 0

    def run(self, job: Job, /) -> None:
        with self._mutex:
            if self._unfinished >= len(self._threads) and len(self._threads) < self._most:
                self._start_another()
            self._unfinished += 1
            self._work.put(job)

    def _start_another(self) -> None:
        self._started += 1
        name = f"ConsumeMessageThread_{self._group}_{self._started}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._threads.add(thread)  # before it runs: its listener may ask whether it is inside
        try:
            thread.start()
        except RuntimeError as failure:  # the system has no more of them: then those that are there do all the work
            self._threads.remove(thread)
            if not self._threads:
                raise Rejected(f"thread {name} is not started: {failure}") from failure
            log.error("thread %s is not started: %s", name, failure)

    def is_inside(self) -> bool:
        return threading.current_thread() in self._threads

    def stop(self) -> None:
        with self._mutex:
            for _ in self._threads:
                self._work.put(None)

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            outcome = self._do(job)
            self._post(partial(self._ended, job, outcome))
            del job, outcome  # an idle thread keeps no message

    def _next(self) -> Job | None:
        """None when the thread may end."""
        if self._least >= self._most:
            return self._work.get()
        while True:
            try:
                return self._work.get(timeout=self._keep_alive)
            except Empty:
                with self._mutex:
                    if self._work.empty() and len(self._threads) > self._least:
                        self._threads.discard(threading.current_thread())
                        return None

    def _do(self, job: Job) -> Outcome | None:
        returned, error = None, None
        if (began := self._calling.begin(job)) is None:
            return None
        try:
            returned = self._calling.consume(job.messages, job.context)
        except BaseException as raised:  # noqa: BLE001  the thread's outermost line: not even SystemExit may end it
            error = raised
        return self._calling.end(job, began, returned, error)

    def _ended(self, job: Job, outcome: Outcome | None) -> None:
        self._unfinished -= 1
        job.ended(outcome)


class InTasks:
    """Tasks of the event loop, at most `most` at once."""

    def __init__(self, most: int, calling: Calling) -> None:
        self._calling = calling
        self._turn = asyncio.Semaphore(most)
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, job: Job, /) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def is_inside(self) -> bool:
        return asyncio.current_task() in self._tasks

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _serve(self, job: Job) -> None:
        outcome = None
        try:
            async with self._turn:
                outcome = await self._do(job)
        finally:
            job.ended(outcome)

    async def _do(self, job: Job) -> Outcome | None:
        returned, error = None, None
        if (began := self._calling.begin(job)) is None:
            return None
        try:
            returned = await _awaitable(self._calling.consume(job.messages, job.context))
        except (Exception, asyncio.CancelledError) as raised:  # noqa: BLE001  the listener may raise anything
            error = raised
        return self._calling.end(job, began, returned, error)


def _awaitable(given: Any) -> Awaitable[Any]:
    if not isawaitable(given):
        raise TypeError(f"the listener returned {given!r}, which cannot be awaited; write it with `async def`")
    return given


class Pool:
    """A runner, and how many of its jobs have not ended."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._unfinished = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def run(self, job: Job) -> None:
        self._unfinished += 1
        self._idle.clear()
        try:
            self.runner.run(Job(job.messages, job.context, job.begin, partial(self._ended, job)))
        except Rejected:
            self._one_less()
            raise

    async def idle(self) -> None:
        """Returns when every job has ended, or was called off."""
        await self._idle.wait()

    def _ended(self, job: Job, outcome: Outcome | None) -> None:
        self._one_less()
        job.ended(outcome)

    def _one_less(self) -> None:
        self._unfinished -= 1
        if not self._unfinished:
            self._idle.set()
