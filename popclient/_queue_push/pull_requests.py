"""The loop of pull requests (requirements B1 and B2).

An assigned message queue has one PullRequest. It is taken from the queue of requests, causes one pull, and is put back
when the pull is answered, at once or after a pause. One dispatcher serves all requests. It waits for no answer, so a
message queue that is stuck stops no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from popclient._consume.process_queue import ProcessQueue
from popclient._engine.clock import Clock
from popclient._tasks import Tasks
from popclient._version import log
from popclient.message import MessageQueue


@dataclass(slots=True, eq=False)
class PullRequest:
    """One assigned queue, and where its next pull begins. Made once per assignment.

    previously_locked: whether an orderly consumer has pulled since the queue's lock was granted (requirement F5).
    quiet: whether the last pull found nothing new. said: what the log says of the last failure.
    """

    consumer_group: str
    message_queue: MessageQueue
    process_queue: ProcessQueue
    next_offset: int
    previously_locked: bool = False
    quiet: bool = False
    logged: str = ""


Pull = Callable[[PullRequest], None]


class PullMessageService:
    """The queue of pull requests of one event loop, and its dispatcher."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ready: asyncio.Queue[tuple[Pull, PullRequest]] = asyncio.Queue()
        self._tasks = Tasks()
        self._started = False

    def start(self) -> None:
        """A second start does nothing (requirement J18)."""
        if not self._started:
            self._started = True
            self._tasks.spawn(self._dispatch())

    def execute_immediately(self, pull: Pull, request: PullRequest) -> None:
        """Calls `pull` with the request when its turn comes."""
        self._ready.put_nowait((pull, request))

    def execute_later(self, pull: Pull, request: PullRequest, seconds: float) -> None:
        self._clock.call_later(seconds, lambda: self.execute_immediately(pull, request))

    async def stop(self) -> None:
        """Ends this dispatcher. Another one that starts meanwhile goes on."""
        tasks, self._tasks, self._started = self._tasks, Tasks(), False
        tasks.cancel()
        await tasks.ended()

    async def _dispatch(self) -> None:
        while True:
            pull, request = await self._ready.get()
            try:
                pull(request)
            except Exception:  # noqa: BLE001  one queue's failure must not stop the others'
                log.exception("the pull of %s failed; the queue is pulled again when it is assigned anew", request)
