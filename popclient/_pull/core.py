"""The pull consumer's core, in one event loop; the synchronous and the asyncio PullConsumer are its two faces."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, Protocol

from popclient._pull.assignment import AssignedQueues
from popclient._pull.commit import OffsetCommitter
from popclient._pull.fetch import Begin, Fetcher
from popclient._pull.options import HOLD, PullOptions
from popclient._pull.subscribe import Subscribing
from popclient._queues import calls
from popclient._queues.allocation import Sharing
from popclient._queues.calls import QueueEnd
from popclient._queues.wire import open_session
from popclient._session import convert
from popclient._session.session import Session
from popclient._tasks import Tasks, begin_task
from popclient._version import log
from popclient.config import ClientConfig
from popclient.errors import ClientClosed, PopError
from popclient.message import MessageQueue, MessageView
from popproto.v2 import definition_pb2 as pb

FOLLOW_INTERVAL: Final = 30.0  # seconds between two checks for new queues, as for routes (requirement N2)
MISSING_INTERVAL: Final = 1.0  # the same while a topic does not exist that is waited for
MEMBERS: Final = "popmq.members"
RESETS: Final = "popmq.resets"


class Consuming(Protocol):
    """Gets the messages that `poll` would return."""

    async def run(self, topics: Sequence[str], /) -> None: ...
    async def end(self) -> None: ...


class PullConsumerCore:
    """Reads queues from offsets, for one group.

    Unless it subscribes, it is not a member of the group, and takes no queue from the members.
    """

    def __init__(self, config: ClientConfig, options: PullOptions) -> None:
        self.config = config
        self.options = options
        self.session = Session(
            config,
            pb.PULL_CONSUMER,
            options.group,
            lambda: convert.subscription(options.group, self._subscribing.topics, config.namespace, HOLD),
        )
        self.session.on_notice = self._handle_notice
        self.session.on_refused = self._refused
        self._arrived = asyncio.Event()
        self._assignment = AssignedQueues(self.session, options, self._arrived.set, self._topic_recreated)
        self._committer = OffsetCommitter(self.session, options.group, self._assignment.fetchers)
        sharing = Sharing(self.session, options.group, options.allocate_strategy)
        missing = self._assignment.generations.missing
        self._subscribing = Subscribing(
            self.session, sharing, self._set_share, self._assignment.learn_generation, missing
        )
        self._followed: set[str] = set()
        self._rotation = itertools.count()
        self._turn = asyncio.Lock()  # whose turn it is to change what is assigned
        self._tasks = Tasks()
        self._beginning: asyncio.Task[None] | None = None
        self._consuming: Consuming | None = None
        self._refusal: PopError | None = None  # if no queue is assigned that could fail with it
        self._started = False
        self.stopped = False
        self._closing = False

    async def start(self) -> None:
        """Opens the session. Raises UnsupportedByServer at once if the server does not offer pulls."""
        self._require_open()
        if self._started:
            return
        await open_session(self.session)
        if not self._started:  # by another call meanwhile
            self._started = True
            self._tasks.spawn(self._keep_following())
            self._tasks.spawn(self._subscribing.keep_balancing(self._turn))
            if self.options.auto_commit:
                self._tasks.spawn(self._committer.keep_committing(self.options.commit_interval.total_seconds()))

    def _require_open(self) -> None:
        if self._closing:
            raise ClientClosed

    # ---- AssignedQueues ----

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Those that can be read, in order."""
        await self.start()
        return await self._assignment.queues(topic)

    async def assign(self, wanted: Iterable[str | MessageQueue]) -> list[MessageQueue]:
        """Assigns these queues and topics instead of the earlier ones. Queues that stay keep their positions."""
        await self.start()
        async with self._turn:
            followed, queues = await self._find(wanted)
            await self._set_assigned(queues)
            self._followed = followed
            await self._subscribing.leave()
            return self._assignment.assigned

    async def subscribe(self, topics: Iterable[str]) -> list[MessageQueue]:
        """Assigns this member's share of the topics instead of what was assigned before."""
        await self.start()
        async with self._turn:
            await self._subscribing.subscribe({topic: self.options.filter_of(topic) for topic in topics})
            self._followed = set()
            return self._assignment.assigned

    async def _find(self, wanted: Iterable[str | MessageQueue]) -> tuple[set[str], set[MessageQueue]]:
        """The topics of which all queues are wanted, and all queues together."""
        whole: set[str] = set()
        queues: set[MessageQueue] = set()
        for each in wanted:
            if isinstance(each, MessageQueue):
                queues.add(await self._assignment.existing(each))
            else:
                whole.add(each)
                queues.update(await self._assignment.queues_if_exists(each))
        return whole, queues

    async def _set_assigned(self, queues: set[MessageQueue], end: QueueEnd | None = None) -> None:
        """Assigns these queues, or changes nothing if that fails."""
        self._assignment.require_room(queues)
        await self._begin_at(queues, await self._assignment.begins(queues, end))

    async def _set_share(self, queues: set[MessageQueue]) -> None:
        """The same for a member. Stores at once where a queue begins: another member may get it before it is polled."""
        self._assignment.require_room(queues)
        await self._begin_at(queues, await self._assignment.stored(await self._assignment.begins(queues)))

    async def _begin_at(self, queues: set[MessageQueue], begins: Mapping[MessageQueue, Begin]) -> None:
        if self.options.auto_commit and not queues.issuperset(self._assignment.assigned):
            await self._committer.commit_at_end(all_done=False)
        self._require_open()
        self._assignment.set_assigned(queues, begins)

    async def _keep_following(self) -> None:
        clock = asyncio.get_running_loop().time
        followed_at = clock()
        while True:
            await asyncio.sleep(min(MISSING_INTERVAL, FOLLOW_INTERVAL))
            if not self.session.routes.missing and clock() - followed_at < FOLLOW_INTERVAL:
                continue
            followed_at = clock()
            try:
                await self._follow()
            except (PopError, ValueError) as failure:
                if isinstance(failure, PopError) and self.session.give_up(failure):
                    continue
                log.warning("new queues of %s are added later: %s", ", ".join(self._followed), failure)

    async def _follow(self) -> None:
        """Assigns the new queues of topics of which all queues are wanted, from their beginning.

        One that was recreated may have fewer queues.
        """
        async with self._turn:
            there = {mq for mq in self._assignment.assigned if mq.topic not in self._followed}
            for topic in self._followed:
                there.update(await self._assignment.queues_if_exists(topic))
            await self._set_assigned(there, QueueEnd.BEGINNING)

    async def _topic_recreated(self, fetcher: Fetcher) -> None:
        """The topic of the fetcher's queue was deleted and recreated, perhaps with more queues, or with fewer."""
        topic = fetcher.mq.topic
        self._assignment.generations.met(topic, fetcher.generation)
        try:
            await self.session.routes.refresh(topic)
            if topic in self._followed:
                await self._follow()
            elif topic in self._subscribing.topics:
                async with self._turn:
                    await self._subscribing.try_to_balance()
        except (PopError, ValueError) as failure:
            log.warning("the queues of %s, which was recreated, are added later: %s", topic, failure)

    @property
    def assigned(self) -> list[MessageQueue]:
        return self._assignment.assigned

    # ---- Reading ----

    async def poll(self, timeout: float, most: int) -> list[MessageView]:
        """Up to so many messages, as soon as there is one; none if the time is over."""
        if self.stopped:
            raise ClientClosed("the consumer was stopped: what it has polled can be committed, until it is closed")
        if self._consuming is not None:
            raise ValueError("the messages go to the listener that was given to consume; poll when it has ended")
        return [view for _, taken in await self.take(timeout, most) for view in taken]

    def _refused(self, refusal: PopError) -> None:
        """`poll` raises it: at once, and again if the next pulls are refused too."""
        self._refusal = None if self._assignment.fetchers else refusal
        for fetcher in self._assignment.fetchers.values():
            fetcher.refuse(refusal)
        self._arrived.set()

    def stop(self) -> None:
        """Ends the polls that wait, without messages, and the iteration."""
        self.stopped = True
        self._arrived.set()

    async def take(self, timeout: float, most: int) -> list[tuple[Fetcher, list[MessageView]]]:
        """The same by queue."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        self._committer.begin_poll()
        while True:
            self._require_open()
            if (refusal := self._refusal) is not None:
                self._refusal = None
                raise refusal
            if self.stopped:
                return []
            if not (self._assignment.fetchers or self._consuming or self._followed or self._subscribing.topics):
                raise ValueError("nothing is assigned; call assign(topic), or assign([...]) with queues, before poll")
            self._arrived.clear()
            self._keep_beginning()
            if taken := self._take(most):
                return taken
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
            except TimeoutError:
                return []

    def _take(self, most: int) -> list[tuple[Fetcher, list[MessageView]]]:
        """From all queues, beginning with another one each time. Raises a failure only if there are no messages."""
        fetchers = [fetcher for fetcher in self._assignment.fetchers.values() if not fetcher.paused]
        begun = [fetcher for fetcher in fetchers if fetcher.has_begun]
        first = next(self._rotation) % max(len(begun), 1)
        by_queue: list[tuple[Fetcher, list[MessageView]]] = []
        for fetcher in begun[first:] + begun[:first]:
            if taken := fetcher.take(most):
                by_queue.append((fetcher, taken))
                most -= len(taken)
        if not by_queue:
            for fetcher in fetchers:
                fetcher.raise_failure()
        return by_queue

    async def consume(self, consuming: Consuming, topics: Sequence[str]) -> None:
        """Gives it the messages that `poll` would return, until this consumer is closed."""
        if self._consuming is not None:
            raise ValueError("a listener gets the messages already; one consumer has one listener")
        if self.options.auto_commit:
            raise ValueError("auto_commit commits what was polled; leave it out, consume commits what is consumed")
        self._consuming = consuming
        try:
            await consuming.run(topics)
        finally:
            self._consuming = None

    @property
    def fetchers(self) -> Mapping[MessageQueue, Fetcher]:
        return self._assignment.fetchers

    async def commit_consumed(self, offsets: Mapping[MessageQueue, int]) -> None:
        """For assigned queues. Raises the refusals."""
        await self._committer.commit(offsets)

    def _keep_beginning(self) -> None:
        """Stores where the queues begin: no message is taken before that. Wakes `poll` when it is done."""
        if not self._committer.has_begun and (self._beginning is None or self._beginning.done()):
            self._beginning = begin_task(self._committer.keep_beginning())
            self._beginning.add_done_callback(lambda _: self._arrived.set())

    def pause(self, mqs: Iterable[MessageQueue]) -> None:
        for fetcher in self._open_each(mqs):
            fetcher.pause()

    def resume(self, mqs: Iterable[MessageQueue]) -> None:
        for fetcher in self._open_each(mqs):
            fetcher.resume()

    def _open_each(self, mqs: Iterable[MessageQueue]) -> list[Fetcher]:
        self._require_open()
        return self._assignment.of_each(mqs)

    # ---- Positions ----

    def position(self, mq: MessageQueue) -> int:
        return self._assignment.of(mq).position

    def generation(self, mq: MessageQueue) -> int:
        return self._assignment.of(mq).generation

    def seek(self, mq: MessageQueue, offset: int, generation: int) -> None:
        for fetcher in self._open_each([mq]):
            fetcher.seek(offset, generation)

    async def search_offset(self, mq: MessageQueue, moment: datetime) -> int:
        await self.start()
        return await calls.query_offset(self.session, mq, moment)

    async def send_message_back(self, message: MessageView, delay_level: int) -> bool:
        await self.start()
        return await calls.send_message_back(self.session, self.options.group, message, delay_level, None)

    async def seek_to(self, mqs: Iterable[MessageQueue], where: QueueEnd | datetime) -> None:
        """All of them, or none if a server fails meanwhile."""
        fetchers = self._open_each(mqs)
        offsets = [await calls.query_offset(self.session, fetcher.mq, where) for fetcher in fetchers]
        for fetcher, offset in zip(fetchers, offsets, strict=True):
            if self._assignment.fetchers.get(fetcher.mq) is fetcher:
                fetcher.seek(offset)

    # ---- Progress ----

    async def committed(self, mq: MessageQueue) -> int | None:
        await self.start()
        progress = await calls.fetch_offsets(self.session, self.options.group, [mq])
        return progress[mq].offset if progress[mq].offset >= 0 else None

    async def commit(self, given: Mapping[MessageQueue, int] | None) -> None:
        """Commits everything that was polled, or up to the given offsets. Raises the refusals."""
        self._require_open()
        if given is None:
            await self._committer.commit_polled()
            return
        polled = dict(given)
        for mq, offset in given.items():
            fetcher = self._assignment.of(mq)
            if offset <= fetcher.position:
                continue
            if offset <= fetcher.left:
                log.warning("offset %d of %s is not committed: its topic was deleted and recreated since", offset, mq)
                del polled[mq]
            else:
                position = fetcher.position
                raise ValueError(
                    f"offset {offset} of {mq} is beyond what poll has returned; commit at most {position}, the next"
                    " offset, or seek there first"
                )
        await self._committer.commit(polled)

    def _handle_notice(self, name: str) -> None:
        if name == MEMBERS:
            self._subscribing.notice()
        elif name == RESETS and self._assignment.fetchers:
            self._tasks.spawn(self._committer.follow_resets())

    # ---- The end ----

    async def close(self, *, all_done: bool = False) -> None:
        """Ends all pulls and says goodbye, within `close_timeout`.

        all_done: whether the messages of the last poll are processed. If so, auto-commit commits them.
        """
        if self._closing:
            return
        self._closing = True
        self._arrived.set()
        clock = asyncio.get_running_loop().time
        deadline = clock() + self.config.close_timeout
        ending = [task for fetcher in self._assignment.fetchers.values() if (task := fetcher.stop())]
        if self._beginning is not None:
            self._beginning.cancel()
            ending.append(self._beginning)
        self._tasks.cancel()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    if self._consuming is not None:
                        await self._consuming.end()
                    await asyncio.gather(*ending, return_exceptions=True)
                    await self._tasks.ended()
                    if self.options.auto_commit:
                        await self._committer.commit_at_end(all_done=all_done)
        finally:
            await self.session.close(deadline - clock())
