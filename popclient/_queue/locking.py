"""The server's locks on the queues of a consumer that works in order (mission rows F2 to F6).

A lock is valid for a time on the server and for a shorter one here, counted from the moment of asking: so its owner
stops before anybody else may begin, whatever happens to an answer on its way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from popclient._queue import calls
from popclient._queue.clock import Clock
from popclient._queue.message_queue import MessageQueue
from popclient._queue.process_queue import ProcessQueue
from popclient._session import Session, log
from popclient.errors import PopError


class QueueLocks:
    """The locks of one consumer. table: the queues that it owns."""

    def __init__(self, session: Session, group: str, clock: Clock, table: Mapping[MessageQueue, ProcessQueue]) -> None:
        self._session = session
        self._group = group
        self._clock = clock
        self._table = table

    async def lock(self, mq: MessageQueue) -> bool:
        """Takes or renews one; False if it is somebody else's, or nobody knows."""
        asked = self._clock.now()
        held = await self._ask([mq])
        if held is None or mq not in held:
            return False
        if (pq := self._table.get(mq)) is not None and not pq.dropped:
            pq.lock(asked)
        return True

    async def renew(self) -> None:
        """All of them, in one call. Without an answer they stay until they expire by themselves."""
        owned = {mq: pq for mq, pq in self._table.items() if not pq.dropped}
        asked = self._clock.now()
        held = await self._ask(owned) if owned else None
        if held is None:
            return
        for mq, pq in owned.items():
            if mq in held:
                pq.lock(asked)
            elif pq.locked:
                pq.unlock()
                log.warning("the lock on %s is lost: another member of group %s has it", mq, self._group)

    async def unlock(self, mqs: Collection[MessageQueue]) -> None:
        """Gives them up; if the server does not hear of it, they lapse there."""
        if not mqs:
            return
        try:
            await calls.unlock_queues(self._session, self._group, mqs)
        except PopError as failure:
            log.warning("locks of group %s are not given up, they will lapse: %s", self._group, failure)

    async def _ask(self, mqs: Collection[MessageQueue]) -> frozenset[MessageQueue] | None:
        try:
            return (await calls.lock_queues(self._session, self._group, mqs)).queues
        except PopError as failure:
            log.warning("locks of group %s are not known: %s", self._group, failure)
            return None
