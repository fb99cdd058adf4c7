"""Takes up and gives up queues, so that the members of a group share them (requirements J3 to J17).

A member that sees no queues or no members keeps its queues, and looks again in a second. While the views of members
differ, two may pull the same queue for a moment: then messages are repeated, and none is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from popclient._consume.context import ConsumeMessageService
from popclient._consume.locks import QueueLocks
from popclient._consume.process_queue import ProcessQueue
from popclient._engine.clock import Clock, Timer, wait_for
from popclient._progress.store import OffsetStore
from popclient._queue_push.pull_requests import PullRequest
from popclient._queues.allocation import Sharing
from popclient._queues.calls import GroupMember
from popclient._queues.subscription import is_retry_topic
from popclient._session.repeating import level_of
from popclient._tasks import Tasks
from popclient._version import log
from popclient.errors import NotFound, PopError
from popclient.message import MessageQueue
from popproto.v2 import definition_pb2 as pb

IDLE_PATIENCE: Final = 0.5  # seconds that it waits for a listener that works on a queue to be given up (requirement F6)
FORCED_AFTER: Final = 20.0  # seconds since the first try to give it up; then it waits no longer


class Begins(Protocol):
    """Where queues begin."""

    async def of(self, mq: MessageQueue, /) -> int:
        """Negative if it is not known (requirement I6)."""

    async def learn_generation(self, mq: MessageQueue, /) -> None:
        """The consumer has no queue of the topic of this queue."""


Changed = Callable[[str, list[MessageQueue], list[MessageQueue]], None]


class Rebalance:
    """The queues of one consumer.

    table: the queues that it owns; only this class changes it. locks: None if queues are not locked.
    topics: what it subscribes to now. missing: called with a topic that does not exist; returns whether that is waited
    for. give_up: called with failures of calls; returns whether one has ended the consumer.
    dispatch: called with the pull request of a new queue. changed: called with a topic, its queues, and those that this
    consumer owns now. refused: called when a lock was not granted.
    """

    def __init__(
        self,
        group: str,
        clock: Clock,
        table: dict[MessageQueue, ProcessQueue],
        sharing: Sharing,
        offset_store: OffsetStore,
        consume_service: ConsumeMessageService,
        *,
        broadcasting: bool,
        pull_max_idle: float,
        locks: QueueLocks | None,
        topics: Callable[[], Iterable[str]],
        beginning: Begins,
        missing: Callable[[str, PopError], bool],
        give_up: Callable[[PopError], bool],
        dispatch: Callable[[PullRequest], None],
        changed: Changed,
        refused: Callable[[], None],
    ) -> None:
        self._group = group
        self._clock = clock
        self._table = table
        self._sharing = sharing
        self._offset_store = offset_store
        self._consume_service = consume_service
        self._broadcasting = broadcasting
        self._pull_max_idle = pull_max_idle
        self._locks = locks
        self._topics = topics
        self._beginning = beginning
        self._missing = missing
        self._give_up_on = give_up
        self._dispatch = dispatch
        self._changed = changed
        self._refused = refused
        self._turn = asyncio.Lock()
        self._in_correction: set[ProcessQueue] = set()

    # ---- One round ----

    async def do_rebalance(self) -> bool:
        """Every topic in turn; a failure in one does not stop the others (requirement J18). False: look again soon."""
        async with self._turn:
            balanced = True
            topics = list(self._topics())
            members = await self._members()
            for topic in topics:
                try:
                    balanced = await self._rebalance_topic(topic, members) and balanced
                except Exception as failure:  # noqa: BLE001  a strategy of the user's may raise anything
                    balanced = self._keep(topic, failure) and balanced
            return await self._truncate(set(topics)) and balanced

    async def _members(self) -> list[GroupMember] | Exception | None:
        """As `Sharing.members`. Returns a failure, which is then raised for each topic."""
        if self._broadcasting:
            return None
        try:
            return await self._sharing.members()
        except Exception as failure:  # noqa: BLE001  raised again for each topic
            return failure

    def _keep(self, topic: str, failure: Exception) -> bool:
        """Keeps the state (requirement J9), unless a refusal ends the consumer. Topics may come later (N2)."""
        if isinstance(failure, NotFound) and failure.code == pb.TOPIC_NOT_FOUND and self._missing(topic, failure):
            return True
        if (isinstance(failure, PopError) and self._give_up_on(failure)) or is_retry_topic(topic):
            return True
        log.log(level_of(failure), "the queues of %s in group %s stay as they are: %s", topic, self._group, failure)
        return False

    async def _rebalance_topic(self, topic: str, members: list[GroupMember] | Exception | None) -> bool:
        queues = await self._sharing.queues(topic)
        if not queues:
            raise LookupError(f"topic {topic} has no queue that can be read")
        if isinstance(members, Exception):
            raise members
        mine: list[MessageQueue] | None = queues
        if not self._broadcasting:
            mine = await self._sharing.share(topic, queues, members)
        if mine is None:
            log.info("%s is not shared yet: the server does not count this member in group %s", topic, self._group)
            return False
        if await self._update_table(topic, mine):
            self._changed(topic, queues, mine)
        if not (mine or self._broadcasting):
            await self._beginning.learn_generation(queues[0])
        # A dropped queue that is still here waits for its listener; the next look is in a second.
        return {mq: pq.dropped for mq, pq in self._table.items() if mq.topic == topic} == dict.fromkeys(mine, False)

    # ---- The table (requirement J7) ----

    async def _update_table(self, topic: str, mine: list[MessageQueue]) -> bool:
        """Whether any queue was given up or taken up."""
        changed = False
        leaving = [(mq, pq) for mq, pq in self._table.items() if mq.topic == topic and self._must_give_up(mq, pq, mine)]
        for _, pq in leaving:  # all at once, so that the next owners need not wait for one commit after the other
            pq.dropped = True
        for mq, pq in leaving:
            changed = await self._give_up(mq, pq) or changed
        for mq in mine:
            if mq not in self._table:
                changed = await self._take_up(mq) or changed
        return changed

    def _must_give_up(self, mq: MessageQueue, pq: ProcessQueue, mine: list[MessageQueue]) -> bool:
        if pq in self._in_correction:
            return False
        if mq not in mine or pq.dropped:
            return True
        if pq.is_pull_expired(self._clock.now(), self._pull_max_idle):
            log.error("%s was not pulled for too long; it is taken up again", mq)
            return True
        return not self._has_lock(mq, pq)

    async def _take_up(self, mq: MessageQueue) -> bool:
        asked = self._clock.now()
        if self._locks is not None and not await self._locks.lock(mq):
            log.info("%s is not taken up yet: another member of group %s has its lock", mq, self._group)
            self._refused()
            return False
        self._offset_store.remove_offset(mq)
        next_offset = await self._beginning.of(mq)
        if next_offset < 0:
            log.warning("%s is not pulled yet: the offset to begin at is not known", mq)
            return False
        pq = ProcessQueue(self._clock.now())
        pq.generation = self._offset_store.generation(mq)
        pq.lock(asked)
        self._table[mq] = pq
        log.info("group %s takes up %s at %d", self._group, mq, next_offset)
        self._dispatch(PullRequest(self._group, mq, pq, next_offset))
        return True

    async def _give_up(self, mq: MessageQueue, pq: ProcessQueue) -> bool:
        """Whether it is given up. An orderly queue stays, dropped, until its listener has ended (requirement F6)."""
        pq.dropped = True
        if self._locks is not None and not await self._is_idle(mq, pq):
            pq.try_unlock_times += 1
            log.warning("%s is kept: its listener is still at it (%d times so far)", mq, pq.try_unlock_times)
            return False
        await self._commit(mq, pq)
        if self._locks is not None:
            await self._locks.unlock([mq])
        if self._table.get(mq) is pq:
            del self._table[mq]
        log.info("group %s gives up %s", self._group, mq)
        return True

    async def _is_idle(self, mq: MessageQueue, pq: ProcessQueue) -> bool:
        """Whether its listener has ended, or the wait for it was long enough."""
        if pq.given_up_timestamp is None:
            pq.given_up_timestamp = self._clock.now()
        if self._clock.now() - pq.given_up_timestamp > FORCED_AFTER:
            return True
        return await self._consume_service.idle(mq, IDLE_PATIENCE)

    def _has_lock(self, mq: MessageQueue, pq: ProcessQueue) -> bool:
        return self._locks is None or self._locks.has(mq, pq)

    async def _commit(self, mq: MessageQueue, pq: ProcessQueue) -> None:
        """Commits, unless the lock is lost: then the next owner decides on the messages.

        A store that fails does not keep a queue from being given up.
        """
        try:
            if self._has_lock(mq, pq):
                await self._offset_store.persist(mq)
        except Exception:  # noqa: BLE001  a store of the user's may raise anything
            log.exception("%s is given up, but %r has not kept its progress", mq, self._offset_store)
        self._offset_store.remove_offset(mq)

    async def _truncate(self, topics: set[str]) -> bool:
        """Queues of topics that are no longer subscribed (requirement J13)."""
        strangers = [(mq, pq) for mq, pq in self._table.items() if mq.topic not in topics]
        return all([await self._give_up(mq, pq) for mq, pq in strangers])

    # ---- Beginning again ----

    def correct(self, mq: MessageQueue, pq: ProcessQueue, offset: int) -> None:
        """Stops a queue whose pull named an illegal offset; after `corrected` it is assigned again (requirement B9)."""
        pq.dropped = True
        self._in_correction.add(pq)
        self._offset_store.freeze(mq, offset)

    async def corrected(self, mq: MessageQueue, pq: ProcessQueue) -> None:
        async with self._turn:
            self._in_correction.discard(pq)
            if self._table.get(mq) is pq:
                await self._give_up(mq, pq)

    async def restart(self, mqs: Iterable[MessageQueue]) -> None:
        """Drops queues without a commit, because others have moved their progress (requirement H13)."""
        async with self._turn:
            for mq in mqs:
                if (pq := self._table.pop(mq, None)) is not None:
                    pq.dropped = True
                    pq.clear()
                    self._offset_store.remove_offset(mq)

    async def give_up_all(self) -> None:
        """At the end: commits what was consumed, and frees the locks."""
        async with self._turn:
            table = dict(self._table)
            try:
                await self._offset_store.persist_all([mq for mq, pq in table.items() if self._has_lock(mq, pq)])
            except Exception:  # noqa: BLE001  a store of the user's may raise anything
                log.exception("group %s ends, but %r has not kept its progress", self._group, self._offset_store)
            for pq in table.values():
                pq.dropped = True
            if self._locks is not None:
                await self._locks.unlock_all()
            self._table.clear()


WAIT_INTERVAL: Final = 20.0  # seconds between two rounds if each queue has its owner
MIN_INTERVAL: Final = 1.0  # the shortest time between two rounds, in seconds; also the time if a queue has not
AFTER_LOCK_REFUSAL: Final = 0.5  # seconds


class Balanced(Protocol):
    """A consumer, as its rounds see it."""

    async def do_rebalance(self) -> bool:
        """Whether it has all queues of its share now."""


class RebalanceService:
    """Rounds of one consumer: every 20 s, earlier if something has changed, and at least a second apart.

    After a notice of the server or a refused lock a round does not wait for that second. Notices are 200 ms apart.
    """

    def __init__(self, clock: Clock, consumer: Balanced) -> None:
        self._clock = clock
        self._consumer = consumer
        self._wanted = asyncio.Event()
        self._at_once = False
        self._refusal: Timer | None = None
        self._tasks = Tasks()
        self._started = False

    def start(self) -> None:
        """A second start does nothing (requirement J18)."""
        if not self._started:
            self._started = True
            self._tasks.spawn(self._run_rounds())

    def wake(self) -> None:
        """Asks for a round: at once if the last one was at least a second ago."""
        self._wanted.set()

    def wake_at_once(self) -> None:
        """Asks for a round now, however recent the last one is."""
        self._at_once = True
        self._wanted.set()

    def retry_refused(self) -> None:
        """A lock was refused: the next round begins in half a second, for all locks that are refused until then."""
        if self._refusal is None:
            self._refusal = self._clock.call_later(AFTER_LOCK_REFUSAL, self._try_refused)

    def _try_refused(self) -> None:
        self._refusal = None
        self.wake_at_once()

    async def stop(self) -> None:
        """Begins no more rounds, and cancels the one that runs."""
        if self._refusal is not None:
            self._refusal.cancel()
        self._tasks.cancel()
        await self._tasks.ended()

    async def _run_rounds(self) -> None:
        while True:
            self._wanted.clear()
            self._at_once = False
            balanced = await self._round()
            last = self._clock.now()
            await wait_for(self._clock, self._wanted, WAIT_INTERVAL if balanced else MIN_INTERVAL)
            while not self._at_once and (left := last + MIN_INTERVAL - self._clock.now()) > 0:
                self._wanted.clear()
                await wait_for(self._clock, self._wanted, left)

    async def _round(self) -> bool:
        try:
            return await self._consumer.do_rebalance()
        except Exception:  # noqa: BLE001  the next round may succeed
            log.exception("%r was not rebalanced; it is in the next round", self._consumer)
            return False
