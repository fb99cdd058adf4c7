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

from popserver.serve.order import ASK, LEAVE, Order, Report
from popserver.serve.process import Facts, begin, loop_factory, prepare, start
from popserver.serve.rules import share_of
from popserver.serve.settings import OK, REFUSED, USAGE, WrongSettings, load_config

STDIN, STDOUT = 0, 1


def main() -> int:
    started = begin()
    faulthandler.enable()  # a supervisor that gets no answer asks by SIGABRT what the threads are doing
    order = Order.read(_first_line())
    try:
        config = load_config(order.settings)
    except WrongSettings as wrong:
        _report(Report(refusal=str(wrong), exit_code=USAGE))
        return USAGE
    prepare(config, worker=order.worker)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_run(order, started))


async def _run(order: Order, started: float) -> int:
    from popserver.app import App
    from popserver.model.errors import PopError

    config = share_of(load_config(order.settings))
    app = App(config, own_process=True, worker=order.worker, given=order.take_sockets())
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)

    def heed() -> None:
        words = os.read(STDIN, len(LEAVE))
        if words == ASK:
            os.write(STDOUT, ASK)
        elif words == LEAVE:
            app.stop_accepting()
        else:
            loop.remove_reader(STDIN)
            stopping.set()

    def say_ready(facts: Facts) -> None:
        _report(Report(facts, config.drain_timeout / 1_000))

    try:
        await start(app, started, say_ready)
    except PopError as error:
        _report(Report(refusal=error.sentence, exit_code=REFUSED))
        return REFUSED
    loop.add_reader(STDIN, heed)
    await stopping.wait()
    await app.stop()
    return OK


def _first_line() -> bytes:
    """Read byte by byte, so that what follows stays in the pipe."""
    line = bytearray()
    while not line.endswith(b"\n"):
        read = os.read(STDIN, 1)
        if not read:
            sys.exit("popmq: a worker is started by popmq serve --workers N, not by hand")
        line += read
    return bytes(line)


def _report(report: Report) -> None:
    os.write(STDOUT, report.line())


if __name__ == "__main__":
    sys.exit(main())
