"""The two ways from a client to its core, which lives in one event loop.

`Here` is the way of asyncio clients: the caller runs in the core's event loop and awaits the answer. `LoopThread` is
the way of synchronous clients: one event loop in one daemon thread serves all of them in a process. Both have the same
methods, so a client is written once, for asyncio; scripts/unasync.py makes the synchronous one. In a child process
that was forked while gRPC was in use, both raise Forked, except that closing a client does nothing.

A thread puts its work into a deque and wakes the loop only if no other thread has done so since the loop last looked:
a thousand sends at once cost one wake-up, and each thread is woken once, by its own answer. The thread is a daemon, so
a process that ends without closing its clients does not hang.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from popclient import _forks
from popclient._version import log
from popclient.errors import ClientClosed, Forked, PopError

T = TypeVar("T")
EXIT_PATIENCE: Final = 0.5  # seconds that the end of a process may take to close its clients


class Closable(Protocol):
    """A client that the end of the process should close."""

    async def close(self) -> None: ...


class Here:
    """The way to a core in the caller's own event loop."""

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Coroutine[Any, Any, T]:
        """Await it: the result of the coroutine."""
        _forks.require_grpc()
        return work()

    def ask(self, submit: Callable[[asyncio.Future[Any]], None]) -> asyncio.Future[Any]:
        """Await it: the outcome that `submit(reply)` gets for the reply."""
        _forks.require_grpc()
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        submit(reply)
        return reply

    def call(self, work: Callable[[], T]) -> T:
        """The result of `work`, which needs the core's loop and no server."""
        return work()

    def post(self, work: Callable[[], object]) -> None:
        """Calls `work`, without a result."""
        work()

    def close_at_exit(self, client: Closable) -> None:
        """Does nothing: what belongs to an event loop is closed before the loop ends."""

    async def close(self, closing: Callable[[], Coroutine[Any, Any, None]], _: Closable | None = None) -> None:
        """Awaits `closing()`, which closes the client."""
        if not _forks.is_lost():
            await closing()


class Waiter:
    """The reply that a thread waits for: a lock that the answer opens."""

    __slots__ = ("_done", "_lock", "_result")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._done = False
        self._result: Any = None

    def wait(self, timeout: float = -1) -> Any:
        """The result. Raises TimeoutError, or what interrupts the thread; a later result is then dropped."""
        try:
            if not self._lock.acquire(timeout=timeout):
                raise TimeoutError
        except BaseException:
            self._done = True
            raise
        return self._result

    def done(self) -> bool:
        return self._done

    def set_result(self, result: Any, /) -> None:
        self._result = result
        self._done = True
        self._lock.release()


class _Raised(NamedTuple):
    """In place of an outcome: the exception that submitting the call has raised."""

    defect: BaseException


def _outcome(waited_for: Any) -> Any:
    """The outcome; raises the exception that came in its place."""
    if isinstance(waited_for, _Raised):
        raise waited_for.defect
    return waited_for


class ClientLoop:
    """An event loop in a daemon thread: that of all synchronous clients of a process."""

    def __init__(self) -> None:
        self._inbox: deque[Callable[[], object]] = deque()
        self._woken = False
        self.clients: weakref.WeakSet[Closable] = weakref.WeakSet()
        self.ending = False
        self.loop = asyncio.new_event_loop()
        # Tests stop `time.monotonic`, as freezegun does; then no wait would end. They leave this function alone.
        self.loop.time = lambda: time.clock_gettime(time.CLOCK_MONOTONIC)  # type: ignore[method-assign]
        self.thread = threading.Thread(target=self._run, name="popclient", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        ended = False
        while not ended:
            try:
                self.loop.run_forever()
                ended = True
            except BaseException:  # noqa: BLE001  asyncio lets SystemExit through, and all clients need this thread
                log.exception("something in the clients' event loop wanted to end it; it goes on")

    def post(self, work: Callable[[], object]) -> None:
        """Has the loop call `work` soon, in the order posted."""
        self._inbox.append(work)
        if not self._woken:
            self._woken = True
            try:
                # Without the caller's context: what starts here serves other callers too.
                self.loop.call_soon_threadsafe(self._drain, context=contextvars.Context())
            except BaseException:  # Ctrl+C: else no thread would wake the loop again
                self._woken = False
                raise

    def _drain(self) -> None:
        # Before the deque is read, not after: what is posted from now on wakes the loop again.
        self._woken = False
        inbox = self._inbox
        while inbox:
            try:
                inbox.popleft()()
            except BaseException:  # noqa: BLE001  one failure must not stop the work behind it
                log.exception("what was posted to the clients' event loop failed; the next one follows")

    def close_clients(self) -> None:
        """Closes the clients that are still open, as far as half a second allows."""
        self.ending = True
        clients = list(self.clients)
        if clients and not _forks.is_lost():
            with contextlib.suppress(TimeoutError):
                LoopThread(self).run(lambda: _close_all(clients), EXIT_PATIENCE)


class _OfProcess:
    """The event loop of this process. Starts at first use, and again in a forked child, which has no threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.present: ClientLoop | None = None

    def get(self) -> ClientLoop:
        with self._guard:
            if self.present is None:
                self.present = ClientLoop()
                atexit.register(self.present.close_clients)
            return self.present

    def left_behind(self) -> None:
        if self.present is not None:
            atexit.unregister(self.present.close_clients)
        self.__init__()  # type: ignore[misc]


_of_process = _OfProcess()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_of_process.left_behind)


def loop_of_process() -> ClientLoop:
    """The event loop of this process."""
    return _of_process.get()


class LoopThread:
    """The way of one synchronous client to the event loop of the process. Its first call takes it, so a client that
    was made before a fork and not used works in the child."""

    def __init__(self, taken: ClientLoop | None = None) -> None:
        self._taken = taken
        self._at_exit: weakref.WeakSet[Closable] = weakref.WeakSet()

    def _take(self) -> ClientLoop:
        """The event loop. Raises Forked where it, or gRPC, belongs to the parent process."""
        _forks.require_grpc()
        if self._taken is None:
            self._taken = loop_of_process()
            self._taken.clients.update(self._at_exit)
        elif self._taken is not _of_process.present:
            raise Forked(_forks.USED_BEFORE)
        return self._taken

    def post(self, work: Callable[[], object]) -> None:
        """Has the loop call `work` soon, in the order posted."""
        self._take().post(work)

    def ask(self, submit: Callable[[Waiter], None]) -> Any:
        """The outcome that `submit(reply)`, called in the loop, gets for the reply; raises what `submit` raises."""
        taken = self._waited_for()
        waiter = Waiter()

        def begin() -> None:
            try:
                submit(waiter)
            except BaseException as defect:  # noqa: BLE001  belongs to the waiting thread
                waiter.set_result(_Raised(defect))

        taken.post(begin)
        return _outcome(waiter.wait())

    def call(self, work: Callable[[], T]) -> T:
        """The result of `work`, called in the loop."""
        result: T = self.ask(lambda reply: reply.set_result(work()))
        return result

    def run(self, work: Callable[[], Coroutine[Any, Any, T]], timeout: float = -1) -> T:
        """The result of the coroutine; it is cancelled when the waiting thread is interrupted."""
        taken = self._waited_for()
        waiter = Waiter()
        tasks: list[asyncio.Task[T]] = []

        def answer(task: asyncio.Task[T]) -> None:
            # Taken here in any case: a thread that was interrupted does not, and asyncio would log that nobody did.
            error = None if task.cancelled() else task.exception()
            # When the process ends, a waiting daemon thread is not woken: it would only log an error.
            if not (taken.ending and isinstance(error, ClientClosed)):
                waiter.set_result(task)

        def begin() -> None:
            try:
                task = taken.loop.create_task(work())
            except BaseException as defect:  # noqa: BLE001  belongs to the waiting thread
                waiter.set_result(_Raised(defect))
            else:
                tasks.append(task)
                task.add_done_callback(answer)

        taken.post(begin)
        try:
            outcome = waiter.wait(timeout)
        except BaseException:
            taken.post(lambda: _cancel(tasks))
            raise
        task: asyncio.Task[T] = _outcome(outcome)
        try:
            return task.result()
        except PopError as failure:
            # Its sentence says all. The way through the client's coroutines would hide the user's own lines.
            raise failure.with_traceback(None)  # noqa: B904  it is the same exception

    def _waited_for(self) -> ClientLoop:
        taken = self._take()
        if threading.current_thread() is taken.thread:
            raise RuntimeError("a callback of the client may not call the client and wait for it: it runs in its loop")
        return taken

    def close_at_exit(self, client: Closable) -> None:
        """Until it is closed, the end of the process closes the client."""
        self._at_exit.add(client)
        if self._taken is not None:
            self._taken.clients.add(client)

    def close(self, closing: Callable[[], Coroutine[Any, Any, None]], client: Closable | None = None) -> None:
        """Returns when `closing()` has closed the client. Does nothing if that belongs to the parent process."""
        if client is not None:
            self._at_exit.discard(client)
            if self._taken is not None:
                self._taken.clients.discard(client)
        with contextlib.suppress(Forked):
            self.run(closing)


def _cancel(tasks: list[asyncio.Task[T]]) -> None:
    for task in tasks:
        task.cancel()


async def _close_all(clients: list[Closable]) -> None:
    await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)
