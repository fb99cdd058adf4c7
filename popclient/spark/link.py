"""The sessions of a Spark process: one for each server and group, opened at first use.

Spark pickles readers and forks workers, and a channel survives neither. So a reader keeps no session, but calls
`link_to` in the method that needs it. Spark does not say when a reader is no longer needed, and its workers go on with
other queries; so an unused session is closed after IDLE_S.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

from popclient._loop import LoopThread
from popclient._queues.wire import open_session
from popclient._session import convert
from popclient._session.repeating import LINK, Pauses
from popclient._session.session import Session
from popclient._tasks import Tasks
from popclient.config import ClientConfig
from popclient.errors import PopError, UnsupportedByServer
from popproto.v2 import definition_pb2 as pb

Answer = TypeVar("Answer")

IDLE_S: Final = 60.0
_GOODBYE_S: Final = 1.0
_HOLD: Final = timedelta(seconds=15)


class ServerLink:
    """At most one session with a server. Safe in threads.

    Its client type is PULL_CONSUMER without a subscription, so it is no member of its group and takes no messages from
    its members.
    """

    def __init__(self, config: ClientConfig, group: str) -> None:
        self.config = config
        self.group = group
        self._thread = LoopThread()
        self._session: Session | None = None
        self._opened: Session | None = None  # the session that the server is known to serve
        self._asking = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._tasks = Tasks()

    def offers(self, capability: str) -> bool:
        """Does the server offer this extension, such as "bulk" or "legacy"? Another server may answer later calls."""

        async def has(session: Session) -> bool:
            return capability in session.capabilities

        try:
            return self.ask(has)
        except UnsupportedByServer:
            return False

    def ask(self, work: Callable[[Session], Awaitable[Answer]], patience: float | None = None) -> Answer:
        """The result of `work(session)`, repeated while its failure is a temporary one.

        patience: seconds for all tries; by default those of the option requestTimeout. A server may restart meanwhile.
        Raises the last failure, a PopError; UnsupportedByServer at once if the server has no session for this type.
        """
        return self.run(lambda: self._patiently(work, patience or self.config.request_timeout))

    def run(self, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """The result of a coroutine that needs no session, from the client's event loop."""
        return self._thread.run(work)

    def close(self) -> None:
        """Closes its session without telling the server; the next `ask` opens a new one."""
        self.run(self._close)

    # ---- In the loop ----

    async def _patiently(self, work: Callable[[Session], Awaitable[Answer]], patience: float) -> Answer:
        clock = asyncio.get_running_loop().time
        deadline = clock() + patience
        pauses = Pauses(LINK)
        with self._in_use():
            while True:
                try:
                    return await work(await self._present())
                except PopError as failure:
                    pause = pauses.after(failure)
                    if not failure.retryable or clock() + pause >= deadline:
                        raise
                await asyncio.sleep(pause)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        if self._alarm is not None:
            self._alarm.cancel()
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1
            if not self._asking:
                self._alarm = asyncio.get_running_loop().call_later(IDLE_S, self._close_if_idle)

    async def _present(self) -> Session:
        """The session, open."""
        if self._session is None:
            subscription = partial(convert.subscription, self.group, {}, self.config.namespace, _HOLD)
            self._session = Session(self.config, pb.PULL_CONSUMER, self.group, subscription)
        session = self._session
        if session is not self._opened or not session.settled:
            await open_session(session)
            self._opened = session
        return session

    def _close_if_idle(self) -> None:
        # An alarm that is due cannot be cancelled, so a call may have begun in the same turn of the loop.
        if not self._asking and self._session is not None:
            session, self._session = self._session, None
            self._tasks.spawn(session.close(_GOODBYE_S))

    async def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close(0)


_links: dict[tuple[ClientConfig, str], ServerLink] = {}
_guard = threading.Lock()


def link_to(config: ClientConfig, group: str) -> ServerLink:
    """The link of this process, for the consumer group that reads."""
    key = (config, group)
    with _guard:
        if key not in _links:
            _links[key] = ServerLink(config, group)
        return _links[key]


def _forget() -> None:
    """After a fork: the sessions belong to the parent process, and the lock may be held there."""
    global _guard
    _guard = threading.Lock()
    _links.clear()


os.register_at_fork(after_in_child=_forget)
