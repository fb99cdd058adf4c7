"""The server's locks on the queues of a consumer that works in order (requirements F2 to F6).

A lock is valid for a time on the server, and for a shorter time here, which begins with the request. So its owner stops
before another owner may begin, even if an answer is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from popclient._consume.process_queue import ProcessQueue
from popclient._engine.clock import Clock
from popclient._queues import calls
from popclient._session.repeating import level_of
from popclient._session.session import Session
from popclient._version import log
from popclient.errors import PopError
from popclient.message import MessageQueue


class QueueLocks:
    """The locks of one consumer.

    table: the queues that it owns. when_lost: called when the lock of one of them is lost.
    """

    def __init__(self, session: Session, group: str, clock: Clock, table: Mapping[MessageQueue, ProcessQueue]) -> None:
        self.when_lost: Callable[[], None] = lambda: None
        self._session = session
        self._group = group
        self._clock = clock
        self._table = table
        self._asked: set[MessageQueue] = set()  # the server may have given these locks
        self._turn = asyncio.Lock()  # a renewal that runs must not take again what is being given up

    async def lock(self, mq: MessageQueue) -> bool:
        """Takes one. False if another member has it or the server does not answer."""
        self._asked.add(mq)
        held = await self._ask([mq])
        if held is not None and mq not in held:
            self._asked.discard(mq)
        return held is not None and mq in held

    async def renew(self) -> None:
        """Renews all of them in one call, also those of queues that are given up when their listener ends.

        Without an answer they stay until they expire.
        """
        async with self._turn:
            owned = dict(self._table)
            asked = self._clock.now()
            held = await self._ask(owned) if owned else None
        if held is None:
            return
        for mq, pq in owned.items():
            if self.has(mq, pq) and mq in held:
                pq.lock(asked)
            else:
                self._lose(mq, pq, "another member has it")

    def has(self, mq: MessageQueue, pq: ProcessQueue) -> bool:
        """Whether this consumer has the lock. After it was lost or has expired this stays False, even if the server
        grants it again: another member may have continued meanwhile, so the queue must be taken up again."""
        if not pq.has_lock(self._clock.now()):
            self._lose(mq, pq, "it has expired")
        return pq.locked

    def _lose(self, mq: MessageQueue, pq: ProcessQueue, why: str) -> None:
        if pq.locked:
            pq.unlock()
            log.warning("the lock on %s is lost, %s in group %s; the queue is taken up again", mq, why, self._group)
            self.when_lost()

    async def unlock(self, mqs: Collection[MessageQueue]) -> None:
        """Gives them up. If the server does not get the call, they expire there."""
        if not mqs:
            return
        async with self._turn:
            self._asked.difference_update(mqs)
            try:
                await calls.unlock_queues(self._session, self._group, mqs)
            except PopError as failure:
                log.log(level_of(failure), "locks of group %s are not given up, they lapse: %s", self._group, failure)

    async def unlock_all(self) -> None:
        """At the end: also those of queues that were being taken up."""
        await self.unlock(self._asked | self._table.keys())

    async def _ask(self, mqs: Collection[MessageQueue]) -> frozenset[MessageQueue] | None:
        try:
            return (await calls.lock_queues(self._session, self._group, mqs)).queues
        except PopError as failure:
            if not self._session.give_up(failure):
                log.log(level_of(failure), "locks of group %s are not known: %s", self._group, failure)
            return None
