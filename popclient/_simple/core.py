"""The simple consumer's core, in one event loop; the synchronous and the asyncio SimpleConsumer are its two faces."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Final

from popclient import _forks
from popclient._engine.flow import RecentWork
from popclient._engine.options import Asking, SimpleOptions
from popclient._engine.receive import ONE_FRAME_MAX
from popclient._engine.settle import Settling
from popclient._loop import Here, LoopThread
from popclient._session import convert
from popclient._session.batching import CombinedReply, Reply
from popclient._session.repeating import ITERATION, Pauses
from popclient._session.session import Session
from popclient._simple.batch_size import BatchSize
from popclient._simple.polls import Poll, Polls
from popclient._tasks import Tasks
from popclient._tracing import receiving
from popclient._version import log
from popclient.config import ClientConfig
from popclient.errors import ClientClosed, MultipleResults, PopError, for_caller
from popclient.keep_alive import HoldRenewal
from popclient.message import MessageView
from popproto.v2 import definition_pb2 as pb

SLACK: Final = 0.25  # seconds beyond the await duration for the answer to travel
WORTH_A_POLL: Final = timedelta(seconds=1)
# A topic with messages answers at once. If one does not answer for this long, the next topic is asked too.
HEDGE: Final = 0.01


class SimpleConsumerCore:
    """Receives, acks and prolongs for one group."""

    client_type: ClassVar[pb.ClientType.ValueType] = pb.SIMPLE_CONSUMER

    def __init__(
        self,
        config: ClientConfig,
        options: SimpleOptions,
        bridge: Here | LoopThread,
    ) -> None:
        self._bridge = bridge
        self.config = config
        self.group = group = options.group
        self.topics = options.topics
        self.defaults = defaults = options.defaults
        self.session = Session(
            config,
            self.client_type,
            group,
            lambda: convert.subscription(group, self.topics, config.namespace, defaults.await_duration),
        )
        self._turn = 0
        self._full: set[str] = set()  # the topics whose last receive was full
        self._handed_out = 0  # messages so far
        self._recent_work = RecentWork()
        self._ready: deque[MessageView] = deque()
        self._batch_size = BatchSize(defaults.max_messages)
        self._watch: asyncio.TimerHandle | None = None  # over those that are ready
        self._refilling = asyncio.Lock()
        self._settling = Settling(self.session, group)
        self._tasks = Tasks()
        self._polls = Polls(
            self.session,
            convert.resource(group, config.namespace),
            self.topics,
            lambda views: self._tasks.spawn(self._settling.give_back(views)),
        )
        self.session.on_refused = self._polls.interrupt
        self.stopped = False
        self._closing = False

    async def start(self) -> None:
        """Looks the topics up and opens the session. Raises a PopError if one of these is refused."""
        for topic in self.topics:
            await self.session.look_up(topic)
        await self.session.start()

    @property
    def _is_started(self) -> bool:
        """Has `start` done all that polls need?"""
        return self.session.settled

    # ---- Receiving ----

    async def receive(self, asking: Asking) -> list[MessageView]:
        """Messages of one of the topics, at most `max_messages`; none when `await_duration` has passed."""
        began_ns = time.time_ns()
        if brought := await self._receive(asking):
            self._receive_ahead(asking, brought)
            renewal = HoldRenewal(self._settling.change_invisible_duration, asking.invisible, self._bridge)
            for view in brought:
                view._renewal = renewal
            receiving(self.config, self.group, brought[0].topic, brought, began_ns)
        return brought

    def _receive_ahead(self, asking: Asking, brought: Sequence[MessageView]) -> None:
        """If full receives follow each other quickly, begins the next one already.

        Asks for as many messages as were worked off in the last moment: those handed out before the ones here. Topics
        that have many share them, and each has at least one receive.
        """
        lately = self._recent_work.count(self._handed_out, asyncio.get_running_loop().time())
        self._handed_out += len(brought)
        full = min(asking.max_messages, ONE_FRAME_MAX)
        if len(brought) >= full:
            self._full.add(brought[0].topic)
        else:
            self._full.discard(brought[0].topic)
        following = self._rotation()[0]
        if lately >= full and following in self._full:
            self._polls.ask_ahead(following, asking, max(lately // len(self._full), full))

    async def _receive(self, asking: Asking) -> list[MessageView]:
        if self.stopped:
            raise ClientClosed("the consumer was stopped: what it has received can be acked, until it is closed")
        if not self._is_started:
            await self.start()
        mine: list[Poll] = []
        deadline = asyncio.get_running_loop().time() + asking.await_duration.total_seconds() + SLACK
        try:
            places = self._places()
            self._turn += 1
            for topic in places:
                mine.append(self._polls.take_up(topic, asking))
                if len(mine) < len(places):
                    await _first_of(mine, HEDGE)
                    if brought := self._brought(mine):
                        return brought
            return await self._wait_on(mine, asking, deadline)
        finally:
            self._polls.release(mine)

    async def _wait_on(self, mine: list[Poll], asking: Asking, deadline: float) -> list[MessageView]:
        """Until a poll brings something, or the time is over."""
        while not (brought := self._brought(mine)):
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or self.stopped:
                return []
            self._renew(mine, asking._replace(await_duration=timedelta(seconds=max(left - SLACK, 0.0))))
            if not mine:
                return []
            await _first_of(mine, left)
        return brought

    def _renew(self, mine: list[Poll], asking: Asking) -> None:
        """Begins a poll again that has ended empty: servers cut long polls, and one of an earlier receive ends early.

        One that was ahead has not waited at the server, so this receive's own poll follows, however short it is.
        """
        for poll in [poll for poll in mine if poll.done]:
            mine.remove(poll)
            self._polls.release([poll])
            if poll.failure is None and (poll.ahead or asking.await_duration > WORTH_A_POLL):
                mine.append(self._polls.take_up(poll.topic, asking))

    def _places(self) -> list[str]:
        """The topic of each poll that a receive may need, those of the first brokers before those of others."""
        topics = self._rotation()
        counts = {topic: self._polls.count_of(topic) for topic in topics}
        return [topic for turn in range(max(counts.values())) for topic in topics if turn < counts[topic]]

    def _rotation(self) -> list[str]:
        """All topics, beginning with the one whose turn it is."""
        topics = list(self.topics)
        first = self._turn % len(topics)
        return topics[first:] + topics[:first]

    def _brought(self, polls: Sequence[Poll]) -> list[MessageView]:
        """The messages of the first poll that has some. Raises the failure of a poll if none has messages, and no other
        poll waits for messages of its topic."""
        if self._closing:
            raise ClientClosed
        if self.stopped:
            return []
        for poll in polls:
            if poll.messages and poll.done and (brought := self._polls.take(poll)):
                return brought
        waiting = {poll.topic for poll in polls if not poll.done}  # at another broker of the topic
        for poll in polls:
            if poll.done and poll.topic not in waiting and (failure := poll.failure):
                raise for_caller(failure)
        return []

    # ---- Iteration ----

    async def next(self) -> MessageView | None:
        """The next message, however long it takes; None once the consumer is stopped or closed."""
        while not (self._closing or self.stopped):
            while (view := self._pop_ready()) is not None:
                if await self._freshen(view):
                    return view
            # If several tasks iterate one consumer, one of them receives for all. Otherwise each would have a poll.
            async with self._refilling:
                await self._refill()
        return None

    async def _refill(self) -> None:
        """Receives until something is ready or the consumer is stopped or closed."""
        pauses = Pauses(ITERATION)
        if not self._ready:
            self._batch_size.emptied()
        while not (self._ready or self._closing or self.stopped):
            try:
                if brought := await self.receive(self.defaults._replace(max_messages=self._batch_size.value)):
                    self._batch_size.received(len(brought))
                    self._ready.extend(brought)
                    self._watch_from(brought[0])
                pauses.succeeded()
            except ClientClosed:
                return
            except PopError as failure:
                if not self.session.transport.reached:
                    raise
                pause = pauses.after(failure)
                log.info("group %s receives again: %s", self.group, failure)
                await asyncio.sleep(pause)

    def take_ready(self) -> MessageView | None:
        """The next message if it is at hand and its hold is fresh. Safe in any thread: the deque is the lock."""
        view = None if self._closing or self.stopped or _forks.is_lost() else self._pop_ready()
        if view is None or self._is_fresh(view):
            return view
        self._ready.appendleft(view)
        return None

    def _pop_ready(self) -> MessageView | None:
        try:
            return self._ready.popleft()
        except IndexError:
            return None

    def _is_fresh(self, view: MessageView) -> bool:
        return self._fresh_for(view) > timedelta(0)

    def _fresh_for(self, view: MessageView) -> timedelta:
        """How long more than half of its hold is left."""
        return view.invisible_until - convert.now() - self.defaults.invisible / 2

    def _watch_from(self, view: MessageView) -> None:
        """Looks at the ready messages when this one, the first, is not fresh any more. The timer has a weak reference:
        it keeps no consumer alive that the program has dropped."""
        if self._watch is None:
            left = max(self._fresh_for(view).total_seconds(), 0.0)
            self._watch = asyncio.get_running_loop().call_later(left, _give_back_late, weakref.ref(self))

    def give_back_late(self) -> None:
        """Ready messages that have waited for half of their hold go back: their attempt does not count, but it would
        if their hold ended here."""
        self._watch = None
        late: list[MessageView] = []
        while (view := self._pop_ready()) is not None:
            if self._is_fresh(view):
                self._ready.appendleft(view)
                self._watch_from(view)
                break
            late.append(view)
        if late:
            log.debug("group %s gives %d messages back that have waited for half of their hold", self.group, len(late))
            self._batch_size.gave_back(len(late))
            self._tasks.spawn(self._settling.give_back(late))

    async def _freshen(self, view: MessageView) -> bool:
        """Renews the hold unless half of it is left. False if the hold is lost: then the message is delivered again."""
        if self._is_fresh(view):
            return True
        try:
            await self.change_invisible_duration(view, self.defaults.invisible)
        except PopError as failure:
            log.debug("%s is not handed out: %s", view, failure)
            return False
        except asyncio.CancelledError:
            self._ready.appendleft(view)
            raise
        return True

    # ---- Settling ----

    def submit_ack(self, view: MessageView, reply: Reply) -> None:
        """Acks it; the reply gets None or a PopError."""
        if self._closing:
            reply.set_result(ClientClosed())
        elif view._keeper is not None:
            self._tasks.spawn(self._ack_after_renewal(view, reply))
        else:
            self._settling.submit_ack(view, reply)

    async def _ack_after_renewal(self, view: MessageView, reply: Reply) -> None:
        await renewal_ended(view)
        self._settling.submit_ack(view, reply)

    def submit_acks(self, views: Sequence[MessageView], reply: Reply) -> None:
        """Acks them; the reply gets the list of outcomes."""
        combined = CombinedReply(len(views), reply)
        for index, view in enumerate(views):
            self.submit_ack(view, combined.part(index))

    async def change_invisible_duration(self, view: MessageView, duration: timedelta) -> None:
        """Restarts the hold; the view gets the new handle, or keeps the old one when this fails."""
        await renewal_ended(view)
        await self._settling.change_invisible_duration(view, duration)

    async def forward_to_dead_letter_queue(self, view: MessageView, reason: str) -> None:
        await renewal_ended(view)
        await self._settling.forward_to_dead_letter_queue(view, reason)

    async def give_back(self, views: Sequence[MessageView]) -> None:
        for view in views:
            await renewal_ended(view)
        await self._settling.give_back(views)

    # ---- The end ----

    def stop(self) -> None:
        """Ends the receives that wait, without messages, and the iteration. What was not handed out goes back."""
        if not self.stopped:
            self.stopped = True
            self._polls.interrupt()
            self._tasks.spawn(self._settling.give_back(list(self._all_ready())))

    async def close(self) -> None:
        """Stops polling, gives messages back, flushes acks and says goodbye, all within `close_timeout`."""
        if self._closing:
            return
        self._closing = True
        if self._watch is not None:
            self._watch.cancel()
        clock = asyncio.get_running_loop().time
        deadline = clock() + self.config.close_timeout
        patience = 0.0  # an interrupted closing does not wait for the goodbye either
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._flush()
            patience = deadline - clock()
        finally:
            self._tasks.cancel()
            self._settling.abandon()
            await self.session.close(patience)

    async def _flush(self) -> None:
        brought = await self._polls.stop()
        await self._settling.give_back([*brought, *self._all_ready()])
        await self._settling.flush()
        await self._tasks.ended()

    def _all_ready(self) -> Iterator[MessageView]:
        """The messages that iteration has received and not handed out."""
        while (view := self._pop_ready()) is not None:
            yield view


def _give_back_late(core: weakref.ref[SimpleConsumerCore]) -> None:
    if (alive := core()) is not None:
        alive.give_back_late()


async def renewal_ended(view: MessageView) -> None:
    """Returns when the message's hold is not renewed any more. Then its handle does not change."""
    if view._keeper is not None:
        await view._keeper.end()


async def _first_of(polls: Sequence[Poll], timeout: float | None) -> None:
    await asyncio.wait([poll.task for poll in polls], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


def raise_for_acks(views: list[MessageView], outcomes: list[Any]) -> None:
    """Raises MultipleResults with the messages that were not acked."""
    failures = [(v, o) for v, o in zip(views, outcomes, strict=True) if isinstance(o, PopError)]
    if failures:
        raise MultipleResults(
            f"{len(failures)} of {len(views)} messages were not acked; the first: {failures[0][1]}", failures=failures
        )
