"""What a Spark process holds open to a server: one session per server and group, made when it is used.

Spark pickles readers and forks workers, and no channel survives either. So nothing here is kept on a reader: ask
`link_to` inside the method that needs it. Spark tells nobody when it is done with a reader, and its workers live on for
other queries: a session that is not used ends.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

from popclient import _convert as convert
from popclient._loop import loop_thread
from popclient._session import Session
from popclient._tasks import Tasks
from popclient.config import ClientConfig
from popclient.errors import PopError, Unreachable
from popproto.v2 import definition_pb2 as pb

Answer = TypeVar("Answer")

IDLE_S: Final = 60.0
_GOODBYE_S: Final = 1.0
_HOLD: Final = timedelta(seconds=15)
_PAUSE_S: Final = (0.1, 2.0)  # between two tries; the first, and the longest that it grows to


class Link:
    """At most one session with a server. Safe in threads.

    Of client type PULL_CONSUMER, subscribed to nothing: it is no member of its group and takes nothing from those that
    are.
    """

    def __init__(self, config: ClientConfig, group: str) -> None:
        self.config = config
        self.group = group
        self._thread = loop_thread()
        self._session: Session | None = None
        self._asking = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._tasks = Tasks()

    def offers(self, capability: str) -> bool:
        """Does the server have this, such as "bulk" or "legacy", beyond RocketMQ? It may be another one later."""

        async def met(session: Session) -> bool:
            if not session.settled:
                await session.start()
            return capability in session.capabilities

        return self.ask(met)

    def ask(self, work: Callable[[Session], Awaitable[Answer]], patience: float | None = None) -> Answer:
        """The answer of `work(session)`, called anew as long as the failure is one that passes.

        patience: seconds, those of the option requestTimeout without one; a server may restart within them. Raises the
        last failure, a PopError.
        """
        return self._thread.run(lambda: self._patiently(work, patience or self.config.request_timeout))

    def close(self) -> None:
        """Ends its session without a goodbye; the next question opens another one."""
        self._thread.run(lambda: self._close(0))

    # ---- In the loop ----

    async def _patiently(self, work: Callable[[Session], Awaitable[Answer]], patience: float) -> Answer:
        clock = asyncio.get_running_loop().time
        deadline = clock() + patience
        pause, longest = _PAUSE_S
        with self._in_use() as session:
            while True:
                try:
                    return await work(session)
                except PopError as failure:
                    if not (failure.retryable or isinstance(failure, Unreachable)) or clock() + pause >= deadline:
                        raise
                await asyncio.sleep(pause)
                pause = min(pause * 2, longest)

    @contextmanager
    def _in_use(self) -> Iterator[Session]:
        if self._alarm is not None:
            self._alarm.cancel()
        if self._session is None:
            self._session = self._new_session()
        self._asking += 1
        try:
            yield self._session
        finally:
            self._asking -= 1
            if not self._asking:
                self._alarm = asyncio.get_running_loop().call_later(IDLE_S, self._rest)

    def _new_session(self) -> Session:
        subscription = partial(convert.subscription, self.group, {}, self.config.namespace, _HOLD)
        return Session(self.config, pb.PULL_CONSUMER, self.group, subscription)

    def _rest(self) -> None:
        self._tasks.spawn(self._close(_GOODBYE_S))

    async def _close(self, goodbye_s: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        session, self._session = self._session, None
        if session is not None:
            await session.close(goodbye_s)


_links: dict[tuple[int, ClientConfig, str], Link] = {}
_guard = threading.Lock()


def link_to(config: ClientConfig, group: str) -> Link:
    """The link of this process, for the consumer group that reads."""
    key = (os.getpid(), config, group)
    with _guard:
        if key not in _links:
            _links[key] = Link(config, group)
        return _links[key]


def close_links() -> None:
    """Ends every session of this process, as a process does that ends."""
    with _guard:
        for each in _links.values():
            each.close()
        _links.clear()
