"""Where a listener runs: in daemon threads, or in tasks of the event loop (requirement E1)."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from inspect import isawaitable
from queue import Empty, SimpleQueue
from types import CoroutineType
from typing import Any, Final, Protocol

from popclient._tasks import begin_task
from popclient._version import log

KEEP_ALIVE: Final = 60.0  # seconds without work, after which a thread may end (requirement E1)


class Rejected(Exception):
    """The runner takes no call now. The caller may try again."""


class ListenerCall(Protocol):
    """One call of a listener: what to call, with what, and whom to tell."""

    def begin(self) -> bool:
        """Called in the thread or task of the listener, right before it. If False, the listener is not called."""

    def listen(self) -> Any:
        """Calls the listener. What it returns is the answer; in a task, what it returns is awaited."""

    def end(self, returned: Any, error: BaseException | None, /) -> None:
        """Called in the thread or task of the listener, with what it has returned or raised."""

    def ended(self, error: BaseException | None, /) -> None:
        """Called in the event loop at the end of every call. error: why `end` was not called; None if it was."""


class Runner(ABC):
    """Runs calls of one listener, up to a number at once. Other calls wait, in order. Belongs to one event loop."""

    def __init__(self) -> None:
        self.unfinished = 0
        self._idle: asyncio.Event | None = None  # while `idle` waits for it

    @abstractmethod
    def run(self, call: ListenerCall, /) -> None:
        """Runs the call, or queues it. Raises Rejected if it is not taken."""

    async def idle(self) -> None:
        """Returns when every call has ended or was cancelled before it began."""
        while self.unfinished:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    def _ended(self, call: ListenerCall, error: BaseException | None) -> None:
        self.unfinished -= 1
        if self._idle is not None and not self.unfinished:
            self._idle.set()
            self._idle = None
        call.ended(error)

    @abstractmethod
    def cancel(self, call: ListenerCall, /) -> None:
        """Ends the call if that is possible. `ended` is called in any case."""

    @abstractmethod
    def is_inside(self) -> bool:
        """Whether the caller is the listener."""

    @abstractmethod
    def stop(self) -> None:
        """No more calls will come."""


MakeRunner = Callable[[str, int, int | None], Runner]
"""Takes the name of threads without their number, how many calls run at once, and how many idle threads stay."""


class ThreadRunner(Runner):
    """Daemon threads, started when first needed: a listener that hangs cannot keep the process from ending.

    name: of the threads, without their number. most: so many at once. post: has the event loop call something.
    least: so many stay when there was nothing to do for `keep_alive` seconds; None: all.
    """

    def __init__(
        self,
        name: str,
        most: int,
        least: int | None = None,
        *,
        post: Callable[[Callable[[], None]], None],
        keep_alive: float = KEEP_ALIVE,
    ) -> None:
        super().__init__()
        self._name = name
        self._most = most
        self._least = most if least is None else least
        self._keep_alive = keep_alive
        self._post = post
        self._started = 0
        self._mutex = threading.Lock()  # so that no call counts on a thread that is about to end
        self._work: SimpleQueue[ListenerCall | None] = SimpleQueue()
        self._threads: set[threading.Thread] = set()

    def run(self, call: ListenerCall, /) -> None:
        with self._mutex:
            if self.unfinished >= len(self._threads) and len(self._threads) < self._most:
                self._start_another()
            self._work.put(call)
        self.unfinished += 1

    def _start_another(self) -> None:
        self._started += 1
        name = f"{self._name}{self._started}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._threads.add(thread)  # before it runs: its listener may ask whether it is inside
        try:
            thread.start()
        except RuntimeError as failure:  # the system has no more threads: those that exist do all the work
            self._threads.remove(thread)
            if not self._threads:
                raise Rejected(f"thread {name} is not started: {failure}") from failure
            log.error("thread %s is not started: %s", name, failure)

    def cancel(self, call: ListenerCall, /) -> None:
        """A thread cannot be ended from outside."""

    def is_inside(self) -> bool:
        return threading.current_thread() in self._threads

    def stop(self) -> None:
        with self._mutex:
            for _ in self._threads:
                self._work.put(None)

    def _serve(self) -> None:
        take = self._work.get if self._least >= self._most else self._take
        while (call := take()) is not None:
            if call.begin():
                returned, error = None, None
                try:
                    returned = call.listen()
                except BaseException as raised:  # noqa: BLE001  the thread's outermost line: SystemExit must not end it
                    error = raised
                call.end(returned, error)
                del returned, error
            self._post(partial(self._ended, call, None))
            del call  # an idle thread keeps no message

    def _take(self) -> ListenerCall | None:
        """The next call; None when the thread may end."""
        while True:
            try:
                return self._work.get(timeout=self._keep_alive)
            except Empty:
                with self._mutex:
                    if self._work.empty() and len(self._threads) > self._least:
                        self._threads.discard(threading.current_thread())
                        return None


class TaskRunner(Runner):
    """One task of the event loop for each call. Tasks end with their calls: `name` and `least` are for threads."""

    def __init__(self, name: str, most: int, least: int | None = None) -> None:
        super().__init__()
        self._most = most
        self._waiting: deque[ListenerCall] = deque()
        self._tasks: dict[ListenerCall, asyncio.Task[None]] = {}

    def run(self, call: ListenerCall, /) -> None:
        self.unfinished += 1
        if len(self._tasks) < self._most:
            self._start(call)
        else:
            self._waiting.append(call)

    def _start(self, call: ListenerCall) -> None:
        task = self._tasks[call] = begin_task(self._serve(call))
        task.add_done_callback(partial(self._done, call))

    def _done(self, call: ListenerCall, task: asyncio.Task[None]) -> None:
        del self._tasks[call]
        if self._waiting:
            self._start(self._waiting.popleft())
        self._ended(call, asyncio.CancelledError() if task.cancelled() else task.exception())

    def cancel(self, call: ListenerCall, /) -> None:
        if call in self._tasks:
            self._tasks[call].cancel()

    def is_inside(self) -> bool:
        return asyncio.current_task() in self._tasks.values()

    def stop(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            self._ended(call, asyncio.CancelledError())
        for task in self._tasks.values():
            task.cancel()

    async def _serve(self, call: ListenerCall) -> None:
        if not call.begin():
            return
        returned, error = None, None
        try:
            answer = call.listen()
            if answer.__class__ is not CoroutineType and not isawaitable(answer):  # most answers pass the quick check
                raise TypeError(f"the listener returned {answer!r}, which cannot be awaited; write it with `async def`")
            returned = await answer
        except (Exception, asyncio.CancelledError) as raised:  # noqa: BLE001  the listener may raise anything
            error = raised
        call.end(returned, error)
