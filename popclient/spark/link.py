"""What a Spark process holds open to a server: one session per server and group, made when it is first used.

Spark pickles readers and forks workers, and no channel survives either. So nothing here is kept on a reader: ask
`link_to` inside the method that needs it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar

from popclient import _convert as convert
from popclient._loop import loop_thread
from popclient._session import Session
from popclient.config import ClientConfig
from popclient.errors import PopError, Unreachable
from popproto.v2 import definition_pb2 as pb

Answer = TypeVar("Answer")

_HOLD: Final = timedelta(seconds=15)
_PAUSE_S: Final = (0.1, 2.0)  # between two tries; the first, and the longest that it grows to


class Link:
    """One session with a server. Safe in threads; ends with the process.

    Of client type PULL_CONSUMER, subscribed to nothing: it is no member of its group and takes nothing from those that
    are.
    """

    def __init__(self, config: ClientConfig, group: str) -> None:
        self.config = config
        self.group = group
        self._thread = loop_thread()
        self._session = Session(
            config, pb.PULL_CONSUMER, group, lambda: convert.subscription(group, {}, config.namespace, _HOLD)
        )

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

    async def _patiently(self, work: Callable[[Session], Awaitable[Answer]], patience: float) -> Answer:
        clock = asyncio.get_running_loop().time
        deadline = clock() + patience
        pause, longest = _PAUSE_S
        while True:
            try:
                return await work(self._session)
            except PopError as failure:
                if not (failure.retryable or isinstance(failure, Unreachable)) or clock() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest)


_links: dict[tuple[int, ClientConfig, str], Link] = {}
_guard = threading.Lock()


def link_to(config: ClientConfig, group: str) -> Link:
    """The link of this process, for the consumer group that reads."""
    key = (os.getpid(), config, group)
    with _guard:
        if key not in _links:
            _links[key] = Link(config, group)
        return _links[key]
