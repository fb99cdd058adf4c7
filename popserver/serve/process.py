"""One server in this process, from its settings to its exit code."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from popserver.serve.settings import OK, REFUSED

if TYPE_CHECKING:
    from popserver.app import App
    from popserver.config import Config

STOP_S = 15.0  # for what a server does after its drain

Facts = Mapping[str, Any]  # of the ready line


def begin() -> float:
    """Call it before the server's code is loaded. Returns the moment from which the start is measured.

    Collects garbage less often: a batch makes thousands of short-lived objects, and what is imported stays.
    """
    gc.set_threshold(50_000, 20, 100)
    return time.monotonic()


def run_alone(config: Config, started: float, *, as_json: bool) -> int:
    """Run a server until a signal stops it. Returns the exit code."""
    prepare(config)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_run_alone(config, started, as_json=as_json))


def prepare(config: Config, *, worker: int = 0) -> None:
    """Load the server's code, and make this process ready for it."""
    from popserver import app as _  # noqa: F401 - loaded before the event loop runs
    from popserver import logs
    from popserver.front import sockets

    logs.configure(config.log_level, config.log_format, worker=worker)
    sockets.raise_limit()


async def _run_alone(config: Config, started: float, *, as_json: bool) -> int:
    from popserver import logs
    from popserver.app import App
    from popserver.front.sockets import notify_supervisor
    from popserver.model.errors import PopError

    asked = Signalled()
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        asked.hear(name)
    app = App(config, own_process=True)

    def report_ready(facts: Facts) -> None:
        words = announce(facts, as_json=as_json)
        notify_supervisor(f"READY=1\nSTATUS={words}")

    starting = asyncio.create_task(start(app, started, report_ready))
    await _first(starting, asyncio.create_task(asked.anything.wait()))
    if not starting.done():
        _end_now(OK)  # The server has no clients yet.
    try:
        starting.result()
    except PopError as error:
        logs.write(sys.stderr, f"popmq: {error.sentence}\n")
        return REFUSED
    await serve_until(asked, app)
    notify_supervisor("STOPPING=1")
    announce_drain(as_json=as_json)
    return await stop(app)


class Signalled:
    """What signals have asked of a server. SIGUSR1: hand the clients over to other servers, then stop."""

    def __init__(self) -> None:
        self.anything = asyncio.Event()
        self.to_stop = asyncio.Event()

    def hear(self, name: signal.Signals) -> None:
        """From now on this signal counts."""
        asyncio.get_running_loop().add_signal_handler(name, self.take, name)

    def take(self, name: signal.Signals) -> None:
        self.anything.set()
        if name != signal.SIGUSR1:
            self.to_stop.set()


async def serve_until(asked: Signalled, app: App) -> None:
    """Serve until the server has to stop. A signal to stop also ends a handover."""
    await asked.anything.wait()
    if not asked.to_stop.is_set():
        await _first(asyncio.create_task(asked.to_stop.wait()), asyncio.create_task(app.hand_over()))


async def _first(*tasks: asyncio.Task[Any]) -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def stop(app: App) -> int:
    """Let running calls finish, and close the store. Returns the exit code.

    A thread may wait for the database without end, for example for a standby that is gone. Then the process ends
    without that thread. The server has not answered those calls, so their clients repeat them.
    """
    import structlog

    stopping = asyncio.create_task(app.stop())
    within_s = app.config.drain_timeout / 1_000 + STOP_S
    await asyncio.wait([stopping], timeout=within_s)
    if not stopping.done():
        log = structlog.get_logger("popserver")
        log.error("not all work was finished in time: a statement of the database still runs", waited_s=within_s)
        _end_now(REFUSED)
    stopping.result()
    return OK


def _end_now(exit_code: int) -> NoReturn:
    """End the process though a thread of it may wait for the database."""
    os._exit(exit_code)


async def start(app: App, started: float, report_ready: Callable[[Facts], None]) -> None:
    """Start the server. Returns the facts of its ready line. Raises a `PopError` that says why it cannot start."""
    from popserver.database.migrate import HEAD

    await app.start()
    assert app.database is not None
    config = app.config
    facts = {
        "grpc": app.endpoint,
        "http": app.http_endpoint or "off",
        **({"admin": app.admin_endpoint} if config.admin else {}),
        "tls": config.tls,
        "store": app.database.name,
        "durability": config.durability,
        "schema": HEAD,
        "ready_after_ms": since_ms(started),
    }
    gc.collect()
    gc.freeze()
    report_ready(facts)


def since_ms(started: float) -> int:
    return round((time.monotonic() - started) * 1_000)


def monotonic_us() -> int:
    """What systemd compares a reload with (man sd_notify)."""
    return time.monotonic_ns() // 1_000


def announce(facts: Facts, *, as_json: bool) -> str:
    """Print the ready line. Returns it as words."""
    from popserver import logs

    words = words_of(facts)
    logs.write(sys.stdout, (json.dumps(facts) if as_json else f"{words}  (RocketMQ 5 protocol)") + "\n")
    return words


def words_of(facts: Facts) -> str:
    """The ready line."""
    return "popserver ready  " + "  ".join(f"{name}={value}" for name, value in facts.items())


def announce_drain(*, as_json: bool) -> None:
    from popserver import logs

    logs.write(sys.stderr, ('{"event": "draining"}' if as_json else "popserver draining") + "\n")


def loop_factory() -> Any:
    """uvloop if it is installed, because it is faster. The `server` extra installs it where there are wheels."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
