"""Long polls that outlive the calls that wait for them.

A poll is a task of its own: a caller that gives up waiting does not end it. What it brings then goes to the next
`receive`, or, when none comes soon, back to the server. So no message is lost in a cancelled call until its hold ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections import defaultdict, deque
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Final, NamedTuple

import grpc

from popclient import _convert as convert
from popclient._session import Session, log
from popclient._transport import Link
from popclient.errors import ClientClosed, PopError, UnexpectedAnswer, error_of
from popclient.message import FilterExpression, MessageView
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc

POLL_MARGIN: Final = 3.0  # seconds that the call may take beyond the long poll itself
# Servers poll for 5 s at least (requirement A12) and refuse a call whose deadline leaves less. A receive
# that waits less leaves its poll to the next receive.
SHORTEST_POLL: Final = 5.0
LEAST_PACE: Final = 1.0  # seconds; a server that answers empty at once must not make its clients spin (requirement A11)
# What the server has answered is there at once; an attempt that was granted nothing would wait a whole poll.
RECALL_PATIENCE: Final = 0.2
STRAY_PATIENCE: Final = 1.0  # seconds that messages without a waiting receive are kept for the next one


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


class Polls:
    """The polls of one consumer.

    give_back: called with messages for which no receive came.
    """

    def __init__(
        self,
        session: Session,
        group: pb.Resource,
        topics: Mapping[str, FilterExpression],
        give_back: Callable[[Sequence[MessageView]], None],
    ) -> None:
        self._session = session
        self._group = group
        self._topics = topics
        self._give_back = give_back
        self._all: set[Poll] = set()
        self._idle: defaultdict[str, deque[Poll]] = defaultdict(deque)
        self._queue_turn = itertools.count()
        self._stopped = False

    def take_up(self, topic: str, asking: Asking) -> Poll:
        """One that is already on its way and asks for the same, or a new one."""
        for _ in range(len(self._idle[topic])):
            idle = self._idle[topic].popleft()
            if idle.asking[:2] == asking[:2]:
                return idle
            self._idle[topic].append(idle)
        if self._stopped:
            raise ClientClosed
        poll = Poll(topic, asking)
        poll.task = asyncio.get_running_loop().create_task(self._ask(poll))
        poll.task.add_done_callback(_note_failure)
        self._all.add(poll)
        return poll

    def release(self, polls: Iterable[Poll]) -> None:
        """What a receive leaves behind waits for the next one."""
        for poll in polls:
            if poll.done and not poll.messages:
                self._all.discard(poll)
                continue
            self._idle[poll.topic].append(poll)
            poll.task.add_done_callback(partial(self._strayed, poll))

    async def stop(self) -> list[MessageView]:
        """Ends all polls; returns the messages that they have brought and no receive has taken."""
        self._stopped = True
        for poll in self._all:
            poll.task.cancel()
        await asyncio.gather(*(poll.task for poll in self._all), return_exceptions=True)
        return [view for poll in self._all for view in poll.take()]

    def _strayed(self, poll: Poll, _: asyncio.Task[None]) -> None:
        """Called when a poll that was left behind has ended."""
        if poll.messages:
            asyncio.get_running_loop().call_later(STRAY_PATIENCE, self._drop_stray, poll)
        else:
            self._drop_stray(poll)

    def _drop_stray(self, poll: Poll) -> None:
        if self._stopped:  # then `stop` hands out what is left
            return
        if poll in self._idle[poll.topic]:
            self._idle[poll.topic].remove(poll)
            self._all.discard(poll)
            if strays := poll.take():
                self._give_back(strays)

    async def _ask(self, poll: Poll) -> None:
        """The call itself, with a margin beyond the long poll; one that breaks before it brings a thing is repeated."""
        topic, asking = poll.topic, poll.asking
        clock = asyncio.get_running_loop().time
        begun = clock()
        route = await self._session.route(topic)
        request = self._request(topic, asking, route)
        patience = max(asking.await_duration.total_seconds(), SHORTEST_POLL) + POLL_MARGIN
        brought: list[MessageView] = []
        try:
            status = await self._session.transport.call(partial(self._attempt, request, brought), patience)
        except asyncio.CancelledError:
            brought = await recall(self._session, request, asking.invisible, brought)
            raise
        finally:
            poll.messages = brought
        if brought:
            return
        if status is None:
            raise UnexpectedAnswer("the server ended the receive without a status")
        if status.code not in (pb.OK, pb.MESSAGE_NOT_FOUND):
            raise error_of(status)
        await asyncio.sleep(min(asking.await_duration.total_seconds(), LEAST_PACE) - (clock() - begun))

    async def _attempt(
        self, request: rpc.ReceiveMessageRequest, brought: list[MessageView], link: Link, remaining: float
    ) -> pb.Status | None:
        """Reads one stream into `brought`. What came before it breaks is handed out at once: its hold is running."""
        timeout = max(remaining, SHORTEST_POLL + POLL_MARGIN)
        request.long_polling_timeout.FromTimedelta(timedelta(seconds=timeout - POLL_MARGIN))
        hold = request.invisible_duration.ToTimedelta()
        call = link.messaging.ReceiveMessage(request, timeout=timeout, metadata=self._session.transport.headers())
        try:
            return await read_messages(call, hold, brought)
        except grpc.aio.AioRpcError as failure:
            if not brought:
                raise
            log.info("a receive broke after %d messages: %s", len(brought), failure.details())
        return None

    def _request(self, topic: str, asking: Asking, route: Sequence[pb.MessageQueue]) -> rpc.ReceiveMessageRequest:
        request = rpc.ReceiveMessageRequest(
            group=self._group,
            message_queue=self._next_queue(topic, route),
            filter_expression=convert.filter_expression(self._topics[topic]),
            batch_size=asking.max_messages,
            auto_renew=False,
            attempt_id=str(uuid.uuid4()),
        )
        request.invisible_duration.FromTimedelta(asking.invisible)
        return request

    def _next_queue(self, topic: str, route: Sequence[pb.MessageQueue]) -> pb.MessageQueue:
        """Of each broker in turn a readable queue: servers look at the broker, and serve any of its queues."""
        readable = [queue for queue in route if queue.permission in (pb.READ, pb.READ_WRITE) and not queue.broker.id]
        brokers = list({queue.broker.name: queue for queue in reversed(readable)}.values())
        if not brokers:
            return pb.MessageQueue(topic=convert.resource(topic, self._session.config.namespace))
        return brokers[next(self._queue_turn) % len(brokers)]


async def recall(
    session: Session,
    request: rpc.ReceiveMessageRequest,
    hold: timedelta,
    brought: Sequence[MessageView],
    patience: float = RECALL_PATIENCE,
) -> list[MessageView]:
    """What the server granted to a receive that was cancelled on its way, beside what it has brought.

    Its attempt is repeated once, for `patience` seconds at most: what was granted is held for us, and to give it
    back one must know of it (requirement K9). A server that repeats nothing is not asked.
    """
    granted: list[MessageView] = []
    if session.is_popmq and patience > 0:
        request.long_polling_timeout.FromTimedelta(timedelta(seconds=SHORTEST_POLL))
        with contextlib.suppress(TimeoutError, PopError, grpc.aio.AioRpcError, grpc.aio.UsageError):
            async with asyncio.timeout(patience):
                link = await session.transport.link()
                timeout, headers = SHORTEST_POLL + POLL_MARGIN, session.transport.headers()
                call = link.messaging.ReceiveMessage(request, timeout=timeout, metadata=headers)
                await read_messages(call, hold, granted)
    return list({view.message_id: view for view in (*brought, *granted)}.values())


async def read_messages(
    call: AsyncIterable[rpc.ReceiveMessageResponse], hold: timedelta, brought: list[MessageView]
) -> pb.Status | None:
    """Reads the answer of a receive to its end, the messages into `brought`; returns its status."""
    status = None
    async for frame in call:
        if frame.HasField("message"):
            until = brought[0].invisible_until if brought else convert.now() + hold
            brought.append(MessageView(frame.message, until))
        elif frame.HasField("status"):
            status = frame.status
    return status


def _note_failure(task: asyncio.Task[None]) -> None:
    """A poll without a waiting receive may fail silently; asyncio would complain."""
    if not task.cancelled():
        task.exception()
