"""The simple consumer's core, in one event loop; `popclient.SimpleConsumer` and `popclient.aio.SimpleConsumer` are its
two faces.

A poll is a task of its own: a caller that gives up waiting does not end it. What it brings then goes to the next
`receive`, or, when none comes soon, back to the server. So no message is lost in a cancelled call until its hold ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from popclient import _convert as convert
from popclient._carrier import Carrier
from popclient._lanes import Call, Joint, Lane, Lanes, Limits, Reply
from popclient._session import Session, log
from popclient._tasks import Tasks
from popclient._transport import Link
from popclient.config import ClientConfig
from popclient.errors import ClientClosed, PopError, UnexpectedAnswer, Unreachable, check, error_of
from popclient.message import FilterExpression, MessageView
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc

ENTRIES_PER_ACK: Final = 512
ACK_REQUESTS_AT_ONCE: Final = 4
POLL_MARGIN: Final = 3.0  # seconds that the call may take beyond the long poll itself
# Servers poll for 5 s at least (mission row A12) and refuse a call whose deadline leaves less. Whoever wants to wait
# less leaves its poll behind, for the next receive to take up.
SHORTEST_POLL: Final = 5.0
SLACK: Final = 0.25  # seconds beyond the await duration for the answer to travel
WORTH_A_POLL: Final = timedelta(seconds=1)
LEAST_PACE: Final = 1.0  # seconds; a server that answers empty at once must not make its clients spin (row A11)
# A topic with messages answers at once; only one that stays silent this long lets the next topic have a go.
HEDGE: Final = 0.01
STRAY_PATIENCE: Final = 1.0  # seconds that messages nobody waits for are kept for the next receive


class Asking(NamedTuple):
    """What a receive asks for."""

    max_messages: int
    invisible: timedelta
    await_duration: timedelta


class Poll:
    """One ReceiveMessage call, and what it has brought."""

    def __init__(self, topic: str, asking: Asking) -> None:
        self.topic = topic
        self.asking = asking
        self.messages: list[MessageView] = []
        self.task: asyncio.Task[None]

    @property
    def done(self) -> bool:
        return self.task.done()

    def take(self) -> list[MessageView]:
        taken, self.messages = self.messages, []
        return taken


class SimpleConsumerCore:
    """Receives, acks and prolongs for one group."""

    def __init__(
        self, config: ClientConfig, group: str, topics: Mapping[str, FilterExpression], defaults: Asking
    ) -> None:
        self.config = config
        self.group = group
        self.topics = dict(topics)
        self.defaults = defaults
        self.session = Session(
            config,
            pb.SIMPLE_CONSUMER,
            group,
            lambda: convert.subscription(group, self.topics, config.namespace, defaults.await_duration),
        )
        self._group = convert.resource(group, config.namespace)
        self._turn = itertools.count()
        self._queue_turn = itertools.count()
        self._polls: set[Poll] = set()
        self._idle: defaultdict[str, deque[Poll]] = defaultdict(deque)
        self._unsettled: defaultdict[str, list[str]] = defaultdict(list)
        self._ready: deque[MessageView] = deque()
        self._carrier = Carrier(self.session, self._exchange_acks)
        self._acks: Lanes[tuple[str, str, str]] = Lanes(self._new_ack_lane)
        self._tasks = Tasks()
        self._closing = False

    async def start(self) -> None:
        """Looks the topics up and opens the session; raises what is wrong with them."""
        for topic in self.topics:
            await self.session.route(topic)
        await self.session.start()

    # ---- Receiving ----

    async def receive(self, asking: Asking) -> list[MessageView]:
        """Messages of one of the topics, at most `max_messages`; none when `await_duration` has passed."""
        if not self.session.settled:
            await self.start()
        mine: list[Poll] = []
        deadline = asyncio.get_running_loop().time() + asking.await_duration.total_seconds() + SLACK
        try:
            for topic in self._rotation():
                mine.append(self._poll(topic, asking))
                if len(mine) < len(self.topics):
                    await _first_of(mine, HEDGE)
                    if brought := self._brought(mine):
                        return brought
            return await self._wait_on(mine, asking, deadline)
        finally:
            self._release(mine)

    async def _wait_on(self, mine: list[Poll], asking: Asking, deadline: float) -> list[MessageView]:
        """Until a poll brings something, or the time is over."""
        while not (brought := self._brought(mine)):
            left = deadline - asyncio.get_running_loop().time()
            self._renew(mine, asking._replace(await_duration=timedelta(seconds=left - SLACK)))
            if not mine or left <= 0:
                return []
            await _first_of(mine, left)
        return brought

    def _renew(self, mine: list[Poll], asking: Asking) -> None:
        """Begins anew what has ended empty: servers cut long polls, and one left by an earlier receive ends early."""
        for poll in [poll for poll in mine if poll.done]:
            mine.remove(poll)
            self._polls.discard(poll)
            if asking.await_duration > WORTH_A_POLL:
                mine.append(self._poll(poll.topic, asking))

    def _rotation(self) -> list[str]:
        """All topics, beginning with another one each time."""
        topics = list(self.topics)
        first = next(self._turn) % len(topics)
        return topics[first:] + topics[:first]

    def _brought(self, polls: Sequence[Poll]) -> list[MessageView]:
        """The messages of the first poll that has some; raises what another one failed of."""
        if self._closing:
            raise ClientClosed
        for poll in polls:
            if poll.messages and poll.done:
                return poll.take()
        for poll in polls:
            if poll.done and not poll.task.cancelled() and (failure := poll.task.exception()):
                raise failure
        return []

    # ---- Polls ----

    def _poll(self, topic: str, asking: Asking) -> Poll:
        """One that is already on its way and asks for the same, or a new one."""
        for _ in range(len(self._idle[topic])):
            idle = self._idle[topic].popleft()
            if idle.asking[:2] == asking[:2]:
                return idle
            self._idle[topic].append(idle)
        if self._closing:
            raise ClientClosed
        poll = Poll(topic, asking)
        poll.task = asyncio.get_running_loop().create_task(self._ask(poll))
        poll.task.add_done_callback(_note_failure)
        self._polls.add(poll)
        return poll

    def _release(self, polls: Iterable[Poll]) -> None:
        """What a receive leaves behind waits for the next one."""
        for poll in polls:
            if poll.done and not poll.messages:
                self._polls.discard(poll)
                continue
            self._idle[poll.topic].append(poll)
            poll.task.add_done_callback(partial(self._strayed, poll))

    def _strayed(self, poll: Poll, _: asyncio.Task[None]) -> None:
        """Called when a poll that was left behind has ended."""
        if poll.messages:
            asyncio.get_running_loop().call_later(STRAY_PATIENCE, self._drop_stray, poll)
        else:
            self._drop_stray(poll)

    def _drop_stray(self, poll: Poll) -> None:
        if poll in self._idle[poll.topic]:
            self._idle[poll.topic].remove(poll)
            self._polls.discard(poll)
            if not self._closing and (strays := poll.take()):
                self._tasks.spawn(self._give_back(strays))

    async def _ask(self, poll: Poll) -> None:
        """The call itself, with a margin beyond the long poll; a broken one is repeated under the same attempt id."""
        topic, asking = poll.topic, poll.asking
        clock = asyncio.get_running_loop().time
        begun = clock()
        route = await self.session.route(topic)
        unsettled = self._unsettled[topic]
        request = self._request(topic, asking, route, unsettled.pop() if unsettled else str(uuid.uuid4()))
        frames: dict[str, pb.Message] = {}
        hold = max(asking.await_duration.total_seconds(), SHORTEST_POLL)
        try:
            status = await self.session.transport.call(partial(self._attempt, request, frames), hold + POLL_MARGIN)
        except Unreachable:
            if not frames:
                unsettled.append(request.attempt_id)
                raise
            status = None
        finally:
            poll.messages = convert.views(list(frames.values()), convert.now(), asking.invisible)
        if frames:
            return
        if status is None:
            raise UnexpectedAnswer("the server ended the receive without a status")
        if status.code not in (pb.OK, pb.MESSAGE_NOT_FOUND):
            raise error_of(status)
        await asyncio.sleep(min(asking.await_duration.total_seconds(), LEAST_PACE) - (clock() - begun))

    async def _attempt(
        self, request: rpc.ReceiveMessageRequest, frames: dict[str, pb.Message], link: Link, remaining: float
    ) -> pb.Status | None:
        """Reads one stream into `frames`, by handle: a repeated attempt brings again what a broken one brought."""
        timeout = max(remaining, SHORTEST_POLL + POLL_MARGIN)
        request.long_polling_timeout.FromTimedelta(timedelta(seconds=timeout - POLL_MARGIN))
        status = None
        call = link.messaging.ReceiveMessage(request, timeout=timeout, metadata=self.session.transport.headers())
        async for frame in call:
            if frame.HasField("message"):
                frames[frame.message.system_properties.receipt_handle] = frame.message
            elif frame.HasField("status"):
                status = frame.status
        return status

    def _request(
        self, topic: str, asking: Asking, route: Sequence[pb.MessageQueue], attempt_id: str
    ) -> rpc.ReceiveMessageRequest:
        request = rpc.ReceiveMessageRequest(
            group=self._group,
            message_queue=self._next_queue(topic, route),
            filter_expression=convert.filter_expression(self.topics[topic]),
            batch_size=asking.max_messages,
            auto_renew=False,
            attempt_id=attempt_id,
        )
        request.invisible_duration.FromTimedelta(asking.invisible)
        return request

    def _next_queue(self, topic: str, route: Sequence[pb.MessageQueue]) -> pb.MessageQueue:
        """Of each broker in turn a readable queue: servers look at the broker, and serve any of its queues."""
        readable = [queue for queue in route if queue.permission in (pb.READ, pb.READ_WRITE) and not queue.broker.id]
        brokers = list({queue.broker.name: queue for queue in reversed(readable)}.values())
        if not brokers:
            return pb.MessageQueue(topic=convert.resource(topic, self.config.namespace))
        return brokers[next(self._queue_turn) % len(brokers)]

    # ---- Iteration ----

    async def next(self) -> MessageView | None:
        """The next message, however long it takes; None once the consumer is closed."""
        pause = 0.05
        while not self._closing:
            if self._ready:
                if (view := await self._freshened(self._ready.popleft())) is not None:
                    return view
                continue
            try:
                self._ready.extend(await self.receive(self.defaults))
                pause = 0.05
            except ClientClosed:
                break
            except PopError as failure:
                if not failure.retryable or not self.session.transport.reached:
                    raise
                log.info("polling again: %s", failure)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 1.0)
        return None

    def take_ready(self) -> MessageView | None:
        """The next message if it is at hand and its hold is fresh. Safe in any thread: the deque is the lock."""
        with contextlib.suppress(IndexError):
            view = None if self._closing else self._ready.popleft()
            if view is None or self._is_fresh(view):
                return view
            self._ready.appendleft(view)
        return None

    def _is_fresh(self, view: MessageView) -> bool:
        return view.invisible_until - convert.now() > self.defaults.invisible / 2

    async def _freshened(self, view: MessageView) -> MessageView | None:
        """The message with at least half of its hold left; None if the hold is lost, for then it comes again."""
        if self._is_fresh(view):
            return view
        try:
            await self.change_invisible_duration(view, self.defaults.invisible)
        except PopError as failure:
            log.debug("%s is not handed out: %s", view, failure)
            return None
        except asyncio.CancelledError:
            self._ready.appendleft(view)
            raise
        return view

    # ---- Settling ----

    def submit_ack(self, view: MessageView, reply: Reply) -> None:
        """Acks it; the reply gets None or a PopError."""
        if self._closing:
            reply.set_result(ClientClosed())
        else:
            self._acks.submit(view.topic, Call((view.topic, view.message_id, view.receipt_handle), 0, reply))

    def submit_acks(self, views: Sequence[MessageView], reply: Reply) -> None:
        """Acks them; the reply gets the list of outcomes."""
        joint = Joint(len(views), reply)
        for index, view in enumerate(views):
            self.submit_ack(view, joint.part(index))

    def _new_ack_lane(self, _topic: str) -> Lane[tuple[str, str, str]]:
        return Lane(self._carrier.carry, lambda: Limits(ENTRIES_PER_ACK, 1, ACK_REQUESTS_AT_ONCE))

    async def _exchange_acks(self, entries: Sequence[tuple[str, str, str]]) -> Sequence[Any]:
        request = rpc.AckMessageRequest(group=self._group, topic=convert.resource(entries[0][0], self.config.namespace))
        for _, message_id, receipt_handle in entries:
            request.entries.add(message_id=message_id, receipt_handle=receipt_handle)
        answer = await self.session.transport.unary(
            lambda link: link.messaging.AckMessage, request, self.config.request_timeout
        )
        if len(answer.entries) == len(entries):
            return [None if entry.status.code == pb.OK else error_of(entry.status) for entry in answer.entries]
        if answer.status.code == pb.OK:
            return [None] * len(entries)
        raise error_of(answer.status)

    async def change_invisible_duration(
        self, view: MessageView, duration: timedelta, *, suspend: bool | None = None
    ) -> None:
        """Restarts the hold; the view gets the new handle, or keeps the old one when this fails."""
        self.session.require_open()
        request = rpc.ChangeInvisibleDurationRequest(
            group=self._group,
            topic=convert.resource(view.topic, self.config.namespace),
            receipt_handle=view.receipt_handle,
            message_id=view.message_id,
            suspend=suspend,
        )
        request.invisible_duration.FromTimedelta(duration)
        asked_at: datetime = convert.now()
        answer = await self.session.transport.unary(
            lambda link: link.messaging.ChangeInvisibleDuration, request, self.config.request_timeout
        )
        check(answer.status)
        view._renew_hold(answer.receipt_handle or view.receipt_handle, asked_at + duration)

    async def forward_to_dead_letter_queue(self, view: MessageView) -> None:
        self.session.require_open()
        request = rpc.ForwardMessageToDeadLetterQueueRequest(
            group=self._group,
            topic=convert.resource(view.topic, self.config.namespace),
            receipt_handle=view.receipt_handle,
            message_id=view.message_id,
            delivery_attempt=view.delivery_attempt,
            max_delivery_attempts=self.session.settings.backoff_policy.max_attempts,
        )
        answer = await self.session.transport.unary(
            lambda link: link.messaging.ForwardMessageToDeadLetterQueue, request, self.config.request_timeout
        )
        check(answer.status)

    async def _give_back(self, views: Sequence[MessageView]) -> None:
        """Makes them Ready at once without burning an attempt; what fails comes back when its hold ends."""
        work = (self.change_invisible_duration(view, timedelta(0), suspend=True) for view in views)
        for outcome in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.debug("a message was not given back: %s", outcome)

    # ---- The end ----

    async def close(self) -> None:
        """Stops polling, gives back, flushes acks, says goodbye; all within `close_timeout`."""
        if self._closing:
            return
        self._closing = True
        clock = asyncio.get_running_loop().time
        deadline = clock() + self.config.close_timeout
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._stop_polls()
                await self._give_back(self._held_back())
                await self._acks.flush()
                await self._carrier.flush()
                await self._tasks.ended()
        self._tasks.cancel()
        self._acks.abandon()
        self._carrier.abandon()
        await self.session.close(deadline - clock())

    async def _stop_polls(self) -> None:
        for poll in self._polls:
            poll.task.cancel()
        await asyncio.gather(*(poll.task for poll in self._polls), return_exceptions=True)

    def _held_back(self) -> list[MessageView]:
        """Everything received and not handed out."""
        held = [view for poll in self._polls for view in poll.take()]
        with contextlib.suppress(IndexError):
            while True:
                held.append(self._ready.popleft())
        return held


async def _first_of(polls: Sequence[Poll], timeout: float | None) -> None:
    await asyncio.wait([poll.task for poll in polls], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


def _note_failure(task: asyncio.Task[None]) -> None:
    """A poll that nobody waits for any more may fail unseen; asyncio would complain."""
    if not task.cancelled():
        task.exception()
