"""A broker inside your process, with real gRPC on a free port, for tests and small programs.

with popserver.embedded(manual_clock=True) as broker:
    with popclient.SimpleConsumer(broker.endpoint, group="g", topics="orders") as consumer:
        …
        broker.clock.advance("2h")

The broker lives in the process that started it. In a forked child it refuses every call, stopping it does nothing, and
its connections are never closed: a child that closes its parent's SQLite connection may damage the file.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import structlog
from pydantic import ValidationError

from popserver import logs
from popserver.app import App
from popserver.config import Config, GivenConfig, sentences_of
from popserver.engine.clock import ManualClock, SystemClock, elapsed_s, wall_ms
from popserver.model.times import duration_ms_of

T = TypeVar("T")


class EmbeddedClock:
    """The broker's clock, for use in your thread. A manual clock changes only when you advance it."""

    def __init__(self, broker: EmbeddedBroker, clock: SystemClock | ManualClock) -> None:
        self._broker = broker
        self._clock = clock

    def now_ms(self) -> int:
        """The server's time in epoch milliseconds."""
        return self._clock.now_ms()

    def advance(self, duration: str | int | timedelta) -> None:
        """Move a manual clock by `"2h"`, a timedelta, or a whole number of milliseconds (not seconds).

        Returns when all work that became due is done. Raises `TypeError` without a manual clock, `ValueError` for a
        wrong duration.
        """
        if not isinstance(self._clock, ManualClock):
            raise TypeError("this broker runs on real time; start it with embedded(manual_clock=True)")
        self._broker.run(self._clock.advance(duration_ms_of(duration), self._broker.app.broker.settle))


class EmbeddedBroker:
    """A broker that runs in its own thread."""

    def __init__(self, config: Config, *, manual_clock: bool | datetime) -> None:
        self.app = App(config, _clock(manual_clock))
        self.clock = EmbeddedClock(self, self.app.clock)
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._loop.time = elapsed_s  # type: ignore[method-assign]  # tests may stop asyncio's own
        self._thread = threading.Thread(target=self._loop.run_forever, name="popmq-embedded", daemon=True)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} runs in this process and cannot be copied or pickled; hand its endpoint on")

    def __repr__(self) -> str:
        return f"<EmbeddedBroker {self.endpoint} {self.app.config.database_url}>"

    @property
    def endpoint(self) -> str:
        """`127.0.0.1:PORT`, for any RocketMQ 5 client."""
        return self.app.endpoint

    @property
    def admin_endpoint(self) -> str:
        """`127.0.0.1:PORT` of the administration; that for clients, unless it is started with the option `admin`."""
        return self.app.admin_endpoint

    @property
    def database_url(self) -> str:
        """Where it keeps its state; `sqlite://` in memory."""
        return self.app.config.database_url

    def settle(self) -> None:
        """Return when everything that is due now is done."""
        self.run(self.app.broker.settle())

    def wait_for(self, condition: Callable[[], object], timeout: float = 30) -> None:
        """Return when `condition()` is true; it is asked every 10 ms. For what a client does in a thread of its own.

        timeout: real seconds, whatever the broker's clock does. Raises `TimeoutError` after them.
        """
        end, pause = elapsed_s() + timeout, threading.Event()
        while not condition():
            if elapsed_s() > end:
                raise TimeoutError(f"the condition did not become true in {timeout:g} s; print what it compares")
            pause.wait(0.01)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the broker's event loop and wait for it. Raises `RuntimeError` in a forked child."""
        if not self._is_here:
            work.close()
            raise RuntimeError(
                f"{self!r} runs in the process that started it, and this one was forked from it; talk to it as a client"
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def start(self) -> None:
        """Returns when it serves; `embedded` calls it."""
        if not structlog.is_configured():
            # Unconfigured, structlog writes all lines, even debug lines, to the program's standard output.
            logs.configure("info", "console")
        _started.add(self)
        self._thread.start()
        self.run(self.app.start())

    def stop(self) -> None:
        """Let running calls finish, then stop. Does nothing in a forked child."""
        if not self._is_here:
            return
        try:
            self.run(self.app.stop())
        finally:
            self._end_thread()

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        _started.discard(self)

    @property
    def _is_here(self) -> bool:
        return self._process == os.getpid()


_started: weakref.WeakSet[EmbeddedBroker] = weakref.WeakSet()


def _keep_what_was_inherited() -> None:
    for broker in list(_started):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(broker))


os.register_at_fork(after_in_child=_keep_what_was_inherited)


def _clock(manual: bool | datetime) -> SystemClock | ManualClock:
    if manual is False:
        return SystemClock()
    return ManualClock(int(wall_ms()) if manual is True else int(manual.timestamp() * 1_000))


@contextmanager
def embedded(
    database: str | Path = "sqlite://",
    *,
    manual_clock: bool | datetime = False,
    port: int = 0,
    **options: Any,
) -> Iterator[EmbeddedBroker]:
    """Run a broker during the block.

    `database` is a URL, or a path to a SQLite file; the default is in memory. Further options are those of
    `popmq serve`, such as `min_invisible="1s"` or `auto_create=False`; a duration is a text, a timedelta, or a whole
    number of milliseconds. By default the broker creates topics and groups on first use, allows holds of 1 s and more
    (`popmq serve`: 10 s), and serves only plaintext. It ignores `popmq.toml` and the environment. Raises `ValueError`
    for a wrong option.

    `manual_clock`: the clock stands still until `broker.clock.advance`; it starts at the machine's time, or at a given
    one, an aware datetime.
    """
    if "database_url" in options:
        raise TypeError("embedded() takes its database as the first argument: embedded('sqlite:///file.db')")
    url = database if "://" in str(database) else f"sqlite:///{database}"
    given = {"drain_timeout": 1_000, "min_invisible": 1_000, "tls": "plaintext", **options}
    try:
        config = GivenConfig(**{**given, "database_url": url, "port": port, "host": "127.0.0.1"})
    except ValidationError as error:
        raise ValueError("; ".join(sentences_of(error))) from None
    broker = EmbeddedBroker(config, manual_clock=manual_clock)
    try:
        broker.start()
    except BaseException:
        broker._end_thread()
        raise
    try:
        yield broker
    finally:
        broker.stop()
