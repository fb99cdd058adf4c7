"""One of several workers: `python -m popserver.serve.worker NUMBER`, started by the supervisor of `popmq serve`.

It is a full server, which listens on sockets that the supervisor has bound. It stops on SIGTERM, and when its
supervisor is gone.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from popserver.serve.order import ASK, LEAVE, Order, Report
from popserver.serve.process import Facts, Signalled, begin, loop_factory, prepare, serve_until, start, stop
from popserver.serve.rules import share_of
from popserver.serve.settings import REFUSED, USAGE, WrongSettings, load_config

if TYPE_CHECKING:
    from popserver.config import Config

STDIN, STDOUT, STDERR = 0, 1, 2


def main() -> int:
    # A terminal that is closed, and its keys, concern the supervisor alone.
    for name in (signal.SIGHUP, signal.SIGINT):
        signal.signal(name, signal.SIG_IGN)
    line = SupervisorPipe()
    started = begin()
    faulthandler.enable()  # a supervisor that gets no answer asks by SIGABRT what the threads are doing
    order = Order.read(line.first())
    line.watch()
    try:
        config = load_config(order.settings)
    except WrongSettings as wrong:
        line.report(Report(refusal=str(wrong), exit_code=USAGE))
        return USAGE
    prepare(config, worker=order.worker)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_run(order, config, line, started))


async def _run(order: Order, config: Config, line: SupervisorPipe, started: float) -> int:
    from popserver.app import App
    from popserver.model.errors import PopError

    sockets = order.take_sockets()
    app = App(share_of(config), own_process=True, worker=order.worker, given=sockets, upgrades=order.upgrades)
    asked = Signalled()

    def report_ready(facts: Facts) -> None:
        # Before this, a signal ends the process at once, whatever it waits for: it has no clients yet.
        for name in (signal.SIGTERM, signal.SIGUSR1):
            asked.hear(name)
        line.serve(leave=app.stop_accepting, stop=lambda: asked.take(signal.SIGTERM))
        line.report(Report(facts, config.drain_timeout / 1_000, config.handover / 1_000))

    try:
        await start(app, started, report_ready)
    except PopError as error:
        line.report(Report(refusal=error.sentence, exit_code=REFUSED))
        return REFUSED
    await serve_until(asked, app)
    return await stop(app)


class SupervisorPipe:
    """The worker's end of the pipes to its supervisor."""

    def __init__(self) -> None:
        # Whatever libraries print goes to the log. The supervisor reads nothing but reports.
        self._reports = os.dup(STDOUT)
        os.dup2(STDERR, STDOUT)
        self._lock = threading.Lock()
        self._orders: WorkerCommands | None = None  # None until the worker is ready

    def first(self) -> bytes:
        """The line of its order. Read byte by byte, so that what follows stays in the pipe."""
        line = bytearray()
        while not line.endswith(b"\n"):
            read = os.read(STDIN, 1)
            if not read:
                sys.exit("popmq: a worker is started by popmq serve --workers N, not by hand")
            line += read
        return bytes(line)

    def watch(self) -> None:
        """From now on the process ends with its supervisor, whatever it waits for: a thread of its own watches."""
        threading.Thread(target=self._watch, name="popmq-supervisor", daemon=True).start()

    def serve(self, *, leave: Callable[[], None], stop: Callable[[], None]) -> None:
        """The worker is ready: it can leave its port to a successor, and stop without losing a call."""
        with self._lock:
            self._orders = WorkerCommands(asyncio.get_running_loop(), leave, stop)

    def report(self, report: Report) -> None:
        os.write(self._reports, report.line())

    def _watch(self) -> None:
        while (word := os.read(STDIN, len(LEAVE))) in (ASK, LEAVE):
            with self._lock:
                if self._orders is not None:
                    self._call(self._answer if word == ASK else self._orders.leave)
        with self._lock:
            if self._orders is None:
                os._exit(REFUSED)  # it has no clients yet
            self._call(self._orders.stop)

    def _call(self, order: Callable[[], None]) -> None:
        assert self._orders is not None
        with suppress(RuntimeError):  # the event loop has ended
            self._orders.loop.call_soon_threadsafe(order)

    def _answer(self) -> None:
        with suppress(BrokenPipeError):  # the supervisor is gone
            os.write(self._reports, ASK)


class WorkerCommands(NamedTuple):
    """The supervisor's commands to a worker that is ready."""

    loop: asyncio.AbstractEventLoop
    leave: Callable[[], None]
    stop: Callable[[], None]


if __name__ == "__main__":
    sys.exit(main())
