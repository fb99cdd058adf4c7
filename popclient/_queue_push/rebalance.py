"""Takes up and gives up queues, so that the members of a group share them (requirements J3 to J17).

Nothing is given up because a view is missing: a member that sees no queues or no members keeps what it has, and looks
again in a second. While views differ a queue may be pulled by two for a moment; messages repeat, none is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from popclient._engine.clock import Clock, Timer, wait_for
from popclient._queue_push.pull_requests import PullRequest
from popclient._queues.allocation import Sharing
from popclient._queues.calls import GroupMember
from popclient._queues.consume import ConsumeMessageService
from popclient._queues.locks import QueueLocks
from popclient._queues.offsets import OffsetStore
from popclient._queues.process_queue import ProcessQueue
from popclient._queues.subscription import is_retry_topic
from popclient._tasks import Tasks
from popclient._version import log
from popclient.errors import NotFound
from popclient.message import MessageQueue
from popproto.v2 import definition_pb2 as pb

IDLE_PATIENCE: Final = 0.5  # seconds for a listener that is at a queue to be given up (requirement F6)
FORCED_AFTER: Final = 20.0  # seconds since it was first to be given up: then its listener is waited for no longer


class Begins(Protocol):
    """Where queues begin."""

    async def of(self, mq: MessageQueue, /) -> int:
        """Negative if that is not known (requirement I6)."""

    async def meet(self, mq: MessageQueue, /) -> None:
        """The consumer has no queue of this topic, of which this is one."""


Changed = Callable[[str, list[MessageQueue], list[MessageQueue]], None]


class Rebalance:
    """The queues of one consumer.

    table: what it owns; shared with others, written here. locks: None where no queue is locked.
    topics: what it subscribes to now. missing: told of a topic that is not there; answers whether that is new.
    dispatch: takes the pull request of a new queue. changed: told of a topic, its queues, and those that are ours now.
    refused: told that a lock was not granted.
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
        locks: QueueLocks | None,
        topics: Callable[[], Iterable[str]],
        beginning: Begins,
        missing: Callable[[str], bool],
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
        self._locks = locks
        self._topics = topics
        self._beginning = beginning
        self._missing = missing
        self._dispatch = dispatch
        self._changed = changed
        self._refused = refused
        self._turn = asyncio.Lock()
        self._in_correction: set[ProcessQueue] = set()

    # ---- One round ----

    async def do_rebalance(self) -> bool:
        """Every topic in turn; a failure in one stops no other (requirement J18). Is each queue where it belongs?"""
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
        """As `Sharing.members`; a failure is each topic's own, to be told where it matters."""
        if self._broadcasting:
            return None
        try:
            return await self._sharing.members()
        except Exception as failure:  # noqa: BLE001  raised again for each topic
            return failure

    def _keep(self, topic: str, failure: Exception) -> bool:
        """The state stays as it is (requirement J9). No topic has to exist yet (requirement N2)."""
        if isinstance(failure, NotFound) and failure.code == pb.TOPIC_NOT_FOUND:
            if self._missing(topic) and not is_retry_topic(topic):
                log.warning("group %s waits for topic %s: %s", self._group, topic, failure)
            return True
        if is_retry_topic(topic):
            return True
        log.warning("the queues of %s in group %s stay as they are: %s", topic, self._group, failure)
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
            await self._beginning.meet(queues[0])
        # One that is dropped and still here waits for its listener: it is looked after again in a second.
        return {mq: pq.dropped for mq, pq in self._table.items() if mq.topic == topic} == dict.fromkeys(mine, False)

    # ---- The table (requirement J7) ----

    async def _update_table(self, topic: str, mine: list[MessageQueue]) -> bool:
        """Has anything been given up or taken up?"""
        changed = False
        leaving = [(mq, pq) for mq, pq in self._table.items() if mq.topic == topic and self._goes(mq, pq, mine)]
        for _, pq in leaving:  # all at once: their next owners do not wait until one after the other is committed
            pq.dropped = True
        for mq, pq in leaving:
            changed = await self._give_up(mq, pq) or changed
        for mq in mine:
            if mq not in self._table:
                changed = await self._take_up(mq) or changed
        return changed

    def _goes(self, mq: MessageQueue, pq: ProcessQueue, mine: list[MessageQueue]) -> bool:
        if pq in self._in_correction:
            return False
        if mq not in mine or pq.dropped:
            return True
        if pq.is_pull_expired(self._clock.now()):
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
        """Is it gone? In order it stays, dropped, until its listener has ended (requirement F6)."""
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
        """Is its listener gone, or waited for long enough?"""
        if pq.given_up_timestamp is None:
            pq.given_up_timestamp = self._clock.now()
        if self._clock.now() - pq.given_up_timestamp > FORCED_AFTER:
            return True
        return await self._consume_service.idle(mq, IDLE_PATIENCE)

    def _has_lock(self, mq: MessageQueue, pq: ProcessQueue) -> bool:
        return self._locks is None or self._locks.has(mq, pq)

    async def _commit(self, mq: MessageQueue, pq: ProcessQueue) -> None:
        """What was consumed under a lock that is not ours any more is for others to say.

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

    async def begin_anew(self, mqs: Iterable[MessageQueue]) -> None:
        """Lets go of queues without committing anything: their progress was moved by others (requirement H13)."""
        async with self._turn:
            for mq in mqs:
                if (pq := self._table.pop(mq, None)) is not None:
                    pq.dropped = True
                    pq.clear()
                    self._offset_store.remove_offset(mq)

    async def give_up_all(self) -> None:
        """At the end: what was consumed is committed, the locks are free."""
        async with self._turn:
            table = dict(self._table)
            try:
                await self._offset_store.persist_all([mq for mq, pq in table.items() if self._has_lock(mq, pq)])
            except Exception:  # noqa: BLE001  a store of the user's may raise anything
                log.exception("group %s ends, but %r has not kept its progress", self._group, self._offset_store)
            for pq in table.values():
                pq.dropped = True
            if self._locks is not None:
                await self._locks.unlock(table.keys())
            self._table.clear()


WAIT_INTERVAL: Final = 20.0  # seconds between two rounds when every queue is where it belongs
MIN_INTERVAL: Final = 1.0  # seconds between two rounds at least, and when something is not
AFTER_LOCK_REFUSAL: Final = 0.5  # seconds


class Balanced(Protocol):
    """A consumer, as its rounds see it."""

    async def do_rebalance(self) -> bool:
        """Is each of its queues where it belongs now?"""


class RebalanceService:
    """Rounds of one consumer: every 20 s, sooner when something is to be done, a second apart at least.

    A notice of the server and a lock that was refused do not wait for that second; the server's are 200 ms apart.
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
        """Starting it twice is no more than once (requirement J18)."""
        if not self._started:
            self._started = True
            self._tasks.spawn(self._beat())

    def wake(self) -> None:
        """A round is due: at once if the last was a second ago or more."""
        self._wanted.set()

    def wake_at_once(self) -> None:
        """A round is due, however near that is to the last."""
        self._at_once = True
        self._wanted.set()

    def retry_refused(self) -> None:
        """A lock was refused: the next round comes in half a second, one for all that are refused until then."""
        if self._refusal is None:
            self._refusal = self._clock.call_later(AFTER_LOCK_REFUSAL, self._try_refused)

    def _try_refused(self) -> None:
        self._refusal = None
        self.wake_at_once()

    async def stop(self) -> None:
        """No further round begins; the one that goes on is broken off."""
        if self._refusal is not None:
            self._refusal.cancel()
        self._tasks.cancel()
        await self._tasks.ended()

    async def _beat(self) -> None:
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
        except Exception:  # noqa: BLE001  the next round may do
            log.exception("%r was not rebalanced; it is in the next round", self._consumer)
            return False
