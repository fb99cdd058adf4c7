"""Where the listener runs: in daemon threads, or in tasks of the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Protocol

from popclient._engine.backlog import Batch
from popclient._engine.interceptors import InterceptorChain
from popclient._engine.options import PushOptions
from popclient._session import log
from popclient.listening import ConsumeResult, ConsumeStatus, Consumption
from popclient.message import MessageView

Ended = Callable[[Batch, Consumption], None]


class Runner(Protocol):
    """Calls the listener; the consumer never gives it more batches at once than its concurrency."""

    def run(self, batch: Batch, ended: Ended, /) -> None:
        """Has the listener consume the batch; `ended` is called in the event loop."""

    def cancel(self, batch: Batch, /) -> None:
        """Ends the listener's call if that can be done; `ended` is called all the same."""

    def is_inside(self) -> bool:
        """Is whoever asks the listener?"""

    def stop(self) -> None:
        """No further batch will come."""


class Threads:
    """Daemon threads, started when first needed: a listener that hangs cannot keep the process from ending.

    post: has the event loop call something.
    """

    def __init__(
        self, options: PushOptions, interceptors: InterceptorChain, post: Callable[[Callable[[], None]], None]
    ) -> None:
        self._options = options
        self._interceptors = interceptors
        self._post = post
        self._work: SimpleQueue[tuple[Batch, Ended] | None] = SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._running = 0

    def run(self, batch: Batch, ended: Ended, /) -> None:
        self._running += 1
        self._work.put((batch, ended))
        if self._running > len(self._threads):
            self._start_another()

    def _start_another(self) -> None:
        name = f"{self._options.group}-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError as failure:  # the system has no more of them: then those that are there do all the work
            self._threads.remove(thread)
            log.error("thread %s is not started: %s", name, failure)

    def cancel(self, batch: Batch, /) -> None:
        """A thread cannot be ended from outside."""

    def is_inside(self) -> bool:
        return threading.current_thread() in self._threads

    def stop(self) -> None:
        for _ in self._threads:
            self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            batch, ended = work
            consumption = self._consume(batch)
            self._post(partial(self._ended, batch, consumption, ended))
            del work, batch, consumption, ended  # an idle thread keeps no message

    def _consume(self, batch: Batch) -> Consumption:
        self._interceptors.before_consume(batch.views)
        began = perf_counter()
        try:
            result = self._options.listener(_given(batch.views, self._options))
        except BaseException as error:  # noqa: BLE001  the thread's outermost line: not even SystemExit may end it
            consumption = Consumption(_status(batch, ConsumeStatus.EXCEPTION), perf_counter() - began, error)
        else:
            consumption = Consumption(_judged(batch, result), perf_counter() - began)
        self._interceptors.after_consume(batch.views, consumption)
        return consumption

    def _ended(self, batch: Batch, consumption: Consumption, ended: Ended) -> None:
        self._running -= 1
        ended(batch, consumption)


class InTasks:
    """One task of the event loop per batch."""

    def __init__(self, options: PushOptions, interceptors: InterceptorChain) -> None:
        self._options = options
        self._interceptors = interceptors
        self._tasks: dict[Batch, asyncio.Task[Consumption]] = {}

    def run(self, batch: Batch, ended: Ended, /) -> None:
        task = asyncio.get_running_loop().create_task(self._consume(batch))
        self._tasks[batch] = task
        task.add_done_callback(partial(self._ended, batch, ended))

    def cancel(self, batch: Batch, /) -> None:
        if batch in self._tasks:
            self._tasks[batch].cancel()

    def is_inside(self) -> bool:
        return asyncio.current_task() in self._tasks.values()

    def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _consume(self, batch: Batch) -> Consumption:
        self._interceptors.before_consume(batch.views)
        began = perf_counter()
        try:
            result = await self._options.listener(_given(batch.views, self._options))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  the listener may raise anything
            consumption = Consumption(_status(batch, ConsumeStatus.EXCEPTION), perf_counter() - began, error)
        else:
            consumption = Consumption(_judged(batch, result), perf_counter() - began)
        self._interceptors.after_consume(batch.views, consumption)
        return consumption

    def _ended(self, batch: Batch, ended: Ended, task: asyncio.Task[Consumption]) -> None:
        del self._tasks[batch]
        if task.cancelled():  # before its first step
            ended(batch, Consumption(_status(batch, ConsumeStatus.EXCEPTION), 0.0, asyncio.CancelledError()))
        elif (defect := task.exception()) is None:
            ended(batch, task.result())
        else:
            ended(batch, Consumption(ConsumeStatus.EXCEPTION, 0.0, defect))


def _given(views: Sequence[MessageView], options: PushOptions) -> MessageView | Sequence[MessageView]:
    return views[0] if options.batch_size is None else views


def _judged(batch: Batch, result: Any) -> ConsumeStatus:
    if result is None:
        log.error(
            "the listener returned nothing, which counts as a failure; return ConsumeResult.SUCCESS when it is done"
        )
        return _status(batch, ConsumeStatus.RETURNNULL)
    if result is ConsumeResult.SUCCESS:
        return _status(batch, ConsumeStatus.SUCCESS)
    if result is not ConsumeResult.FAILURE:
        log.error("the listener returned %r, which counts as a failure; return a ConsumeResult", result)
    return _status(batch, ConsumeStatus.FAILED)


def _status(batch: Batch, otherwise: ConsumeStatus) -> ConsumeStatus:
    return ConsumeStatus.TIMEOUT if batch.timed_out else otherwise
