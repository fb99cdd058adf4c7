"""The two ways from a client to its core, which lives in one event loop.

`Here` is the way of asyncio clients: the caller runs in the core's event loop and awaits the answer. `LoopThread` is
the way of synchronous clients: one event loop in one daemon thread serves all of them in a process. Both have the same
methods, so a client is written once, for asyncio; scripts/unasync.py makes the synchronous one.

A thread puts its work into a deque and wakes the loop only if no other thread has done so since the loop last looked:
a thousand sends at once cost one wake-up, and each thread is woken once, by its own answer. The thread is a daemon, so
a process that ends without closing its clients does not hang.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from popclient._version import log
from popclient.errors import ClientClosed

T = TypeVar("T")
EXIT_PATIENCE: Final = 0.5  # seconds that the end of a process may take to close its clients


class Closable(Protocol):
    """A client that the end of the process should close."""

    async def close(self) -> None: ...


class Here:
    """The way to a core in the caller's own event loop."""

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Coroutine[Any, Any, T]:
        """Await it: the result of the coroutine."""
        return work()

    def ask(self, submit: Callable[[asyncio.Future[Any]], None]) -> asyncio.Future[Any]:
        """Await it: the outcome that `submit(reply)` gets for the reply."""
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

    def forget(self, client: Closable) -> None:
        """Does nothing; see `close_at_exit`."""


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


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._inbox: deque[Callable[[], object]] = deque()
        self._woken = False
        self._clients: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._ending = False
        self.alive = True
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="popclient", daemon=True)
        self._thread.start()

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
        if not self.alive:
            raise ClientClosed("this client was made before the process forked; make a new one in the child")
        self._inbox.append(work)
        if not self._woken:
            self._woken = True
            # Without the caller's context: what starts here serves other callers too.
            self.loop.call_soon_threadsafe(self._drain, context=contextvars.Context())

    def _drain(self) -> None:
        # Before the deque is read, not after: what is posted from now on wakes the loop again.
        self._woken = False
        inbox = self._inbox
        while inbox:
            try:
                inbox.popleft()()
            except BaseException:  # noqa: BLE001  one failure must not stop the work behind it
                log.exception("what was posted to the clients' event loop failed; the next one follows")

    def ask(self, submit: Callable[[Waiter], None]) -> Any:
        """The outcome that `submit(reply)`, called in the loop, gets for the reply; raises what `submit` raises."""
        self._forbid_own_thread()
        waiter = Waiter()

        def begin() -> None:
            try:
                submit(waiter)
            except BaseException as defect:  # noqa: BLE001  belongs to the waiting thread
                waiter.set_result(_Raised(defect))

        self.post(begin)
        return _outcome(waiter.wait())

    def call(self, work: Callable[[], T]) -> T:
        """The result of `work`, called in the loop."""
        result: T = self.ask(lambda reply: reply.set_result(work()))
        return result

    def run(self, work: Callable[[], Coroutine[Any, Any, T]], timeout: float = -1) -> T:
        """The result of the coroutine; it is cancelled when the waiting thread is interrupted."""
        self._forbid_own_thread()
        waiter = Waiter()
        tasks: list[asyncio.Task[T]] = []

        def answer(task: asyncio.Task[T]) -> None:
            # Taken here in any case: a thread that was interrupted does not, and asyncio would log that nobody did.
            error = None if task.cancelled() else task.exception()
            # When the process ends, a waiting daemon thread is not woken: it would only log an error.
            if not (self._ending and isinstance(error, ClientClosed)):
                waiter.set_result(task)

        def begin() -> None:
            try:
                task = self.loop.create_task(work())
            except BaseException as defect:  # noqa: BLE001  belongs to the waiting thread
                waiter.set_result(_Raised(defect))
            else:
                tasks.append(task)
                task.add_done_callback(answer)

        self.post(begin)
        try:
            outcome = waiter.wait(timeout)
        except BaseException:
            self.post(lambda: _cancel(tasks))
            raise
        task: asyncio.Task[T] = _outcome(outcome)
        return task.result()

    def _forbid_own_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback of the client may not call the client and wait for it: it runs in its loop")

    # ---- The end of the process ----

    def close_at_exit(self, client: Closable) -> None:
        """Until `forget`, the end of the process closes the client."""
        self._clients.add(client)

    def forget(self, client: Closable) -> None:
        self._clients.discard(client)

    def close_clients(self) -> None:
        """Closes the clients that are still open, as far as half a second allows."""
        self._ending = True
        clients = list(self._clients)
        if clients and self.alive:
            try:
                self.run(lambda: _close_all(clients), EXIT_PATIENCE)
            except TimeoutError:
                return


def _cancel(tasks: list[asyncio.Task[T]]) -> None:
    for task in tasks:
        task.cancel()


async def _close_all(clients: list[Closable]) -> None:
    await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)


class _OfProcess:
    """The loop thread of this process. Starts at first use, and again in a forked child, which has no threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._thread: LoopThread | None = None

    def get(self) -> LoopThread:
        with self._guard:
            if self._thread is None:
                self._thread = LoopThread()
                atexit.register(self._thread.close_clients)
            return self._thread

    def left_behind(self) -> None:
        if self._thread is not None:
            self._thread.alive = False
        self.__init__()  # type: ignore[misc]


_of_process = _OfProcess()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_of_process.left_behind)


def loop_thread() -> LoopThread:
    """The loop thread that all synchronous clients of this process share."""
    return _of_process.get()
