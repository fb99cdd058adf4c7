"""Long polls that outlive the calls that wait for them.

A poll is a task of its own: a caller that stops waiting does not end it. Its messages then go to the next `receive`, or
back to the server if none comes soon. So messages of a cancelled call need not wait until their holds end.

A poll ahead begins before its `receive` is called (docs/design/0019), and may bring messages for several. It brings
what is there and does not wait, so no message comes to a consumer that has stopped to receive.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Final

from popclient._engine.options import Asking
from popclient._engine.receive import LEAST_PACE, ONE_FRAME_MAX, RECEIVE_BATCH, Receive, receive_request
from popclient._session import convert
from popclient._session.session import Session
from popclient._tasks import begin_task
from popclient._version import log
from popclient.errors import ClientClosed, NotFound, PopError
from popclient.message import FilterExpression, MessageView
from popproto.v2 import definition_pb2 as pb

UNUSED_PATIENCE_S: Final = 1.0  # seconds that messages without a waiting receive are kept for the next one
AHEAD_MAX: Final = 2 * ONE_FRAME_MAX  # messages: one answer is worked off while the next one is under way
AHEAD_AGAIN: Final = 10.0  # seconds without polls ahead after messages of one were given back


class Poll:
    """One receive, and what it has brought.

    ahead: how many messages it asks for, if it has begun before a `receive` was called.
    """

    def __init__(self, topic: str, asking: Asking, *, ahead: int = 0) -> None:
        self.topic = topic
        self.asking = asking
        self.ahead = ahead
        self.messages: list[MessageView] = []
        self.refusal: PopError | None = None  # why it was interrupted
        self.broker = ""  # the name of the one that it asks
        self.task: asyncio.Task[None]

    @property
    def done(self) -> bool:
        return self.task.done()

    @property
    def failure(self) -> BaseException | None:
        """Why it has ended without a result."""
        return self.refusal if self.task.cancelled() else self.task.exception()

    @property
    def expected(self) -> int:
        """How many messages it has, or may still bring."""
        return len(self.messages) if self.done else self.ahead

    def take(self) -> list[MessageView]:
        taken, self.messages = self.messages, []
        return taken


class Polls:
    """The polls of one consumer.

    give_back: called with messages that no `receive` has taken.
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
        self._ahead_from = 0.0  # by the loop's clock
        self._in_order: set[str] = set()  # topics that have brought a message group ahead
        self._stopped = False

    def take_up(self, topic: str, asking: Asking) -> Poll:
        """A poll that is already running and asks for the same, or a new one."""
        for _ in range(len(self._idle[topic])):
            idle = self._idle[topic].popleft()
            if idle.asking[:2] == asking[:2]:
                return idle
            self._idle[topic].append(idle)
        if self._stopped:
            raise ClientClosed
        return self._begin(Poll(topic, asking))

    def count_of(self, topic: str) -> int:
        """How many polls look everywhere for messages of the topic: RocketMQ's proxy looks at one broker for each."""
        return 1 if self._session.is_popmq else max(len(_brokers_of(self._session.routes.queues.get(topic, ()))), 1)

    def ask_ahead(self, topic: str, asking: Asking, wanted: int) -> None:
        """Begins a poll for the next receives, where the server answers a receive in one frame.

        wanted: the number of messages, with those that are ahead already; it is rounded to whole receives.
        """
        if (
            self._stopped
            or RECEIVE_BATCH not in self._session.capabilities
            # There must be enough of the hold left when the messages are handed out.
            or asking.invisible / 2 <= timedelta(seconds=UNUSED_PATIENCE_S)
            or asyncio.get_running_loop().time() < self._ahead_from
        ):
            return
        each = min(asking.max_messages, ONE_FRAME_MAX)
        wanted = each if topic in self._in_order else min(wanted, AHEAD_MAX)
        missing = wanted - sum(poll.expected for poll in self._idle[topic] if poll.ahead)
        if 2 * missing >= wanted and missing >= each:
            self.release([self._begin(Poll(topic, asking, ahead=min(missing, ONE_FRAME_MAX) // each * each))])

    def take(self, poll: Poll) -> list[MessageView]:
        """The messages of a poll for one receive; none if it was ahead and less than half of the hold is left."""
        brought = poll.take()
        if not (brought and poll.ahead):
            return brought
        if brought[0].invisible_until - convert.now() <= poll.asking.invisible / 2:
            self._return_unused(poll, brought)
            return []
        brought, rest = brought[: poll.asking.max_messages], brought[poll.asking.max_messages :]
        if any(view.message_group or view.lite_topic for view in rest):
            # One receive at a time: a message must not follow one of its group that fails now.
            self._in_order.add(poll.topic)
            self._give_back(rest)
        else:
            poll.messages = rest
        return brought

    def _begin(self, poll: Poll) -> Poll:
        poll.task = begin_task(self._ask(poll))
        poll.task.add_done_callback(_note_failure)
        self._all.add(poll)
        return poll

    def release(self, polls: Iterable[Poll]) -> None:
        """Keeps the polls that a receive did not wait for, for the next receive."""
        for poll in polls:
            if poll.done and not poll.messages:
                self._all.discard(poll)
                continue
            if poll.done:
                self._idle[poll.topic].appendleft(poll)
            else:
                self._idle[poll.topic].append(poll)
            poll.task.add_done_callback(partial(self._poll_ended, poll))

    def interrupt(self, refusal: PopError | None = None) -> None:
        """Ends the polls that run, without a result or with this refusal. What the server has granted them meanwhile
        goes back to it, or to the next receive."""
        for poll in self._all:
            if not poll.done:
                poll.refusal = refusal
                poll.task.cancel()

    async def stop(self) -> list[MessageView]:
        """Ends all polls; returns the messages that they have brought and no receive has taken."""
        self._stopped = True
        ended, self._all = self._all, set()  # their tasks keep what gRPC was doing
        self._idle.clear()
        for poll in ended:
            poll.task.cancel()
        await asyncio.gather(*(poll.task for poll in ended), return_exceptions=True)
        return [view for poll in ended for view in poll.take()]

    def _poll_ended(self, poll: Poll, _: asyncio.Task[None]) -> None:
        """Called when a poll that was released has ended."""
        if poll.messages and not self._stopped:  # a timer would keep the poll, and with it the connection
            asyncio.get_running_loop().call_later(UNUSED_PATIENCE_S, self._drop_unused, poll)
        else:
            self._drop_unused(poll)

    def _drop_unused(self, poll: Poll) -> None:
        if self._stopped:  # then `stop` returns what is left
            return
        if poll in self._idle[poll.topic]:
            self._idle[poll.topic].remove(poll)
            self._all.discard(poll)
            if unused := poll.take():
                self._return_unused(poll, unused)

    def _return_unused(self, poll: Poll, unused: Sequence[MessageView]) -> None:
        if poll.ahead:
            self._ahead_from = asyncio.get_running_loop().time() + AHEAD_AGAIN
        self._give_back(unused)

    async def _ask(self, poll: Poll) -> None:
        """While the topic does not exist and the client waits for it, asks again each second."""
        clock = asyncio.get_running_loop().time
        end = clock() + poll.asking.await_duration.total_seconds()
        while True:
            try:
                return await self._ask_once(poll)
            except NotFound as failure:
                if not self._session.routes.awaits(poll.topic, failure):
                    raise
            if (left := end - clock()) <= 0:
                return None
            await asyncio.sleep(min(left, LEAST_PACE))

    async def _ask_once(self, poll: Poll) -> None:
        """Makes the call, with a margin beyond the long poll. Repeats it if it breaks before it has any message."""
        topic, asking = poll.topic, poll.asking
        clock = asyncio.get_running_loop().time
        begun = clock()
        route = await self._session.route(topic)
        request = receive_request(
            self._group,
            self._next_queue(poll, route),
            self._topics[topic],
            poll.ahead or asking.max_messages,
            asking.invisible,
            auto_renew=False,
        )
        long_poll = 0.0 if poll.ahead else asking.await_duration.total_seconds()
        receive = Receive(self._session, request, asking.invisible, long_poll, repeats=False, waits=not poll.ahead)
        try:
            await receive.run()
        except asyncio.CancelledError:
            await receive.recall()
            raise
        except PopError as failure:
            if not poll.ahead:
                raise
            log.debug("a poll ahead of %s brought nothing: %s", topic, failure)  # the `receive` asks again
        finally:
            poll.messages = receive.brought
        if not poll.messages and not poll.ahead:
            await asyncio.sleep(min(long_poll, LEAST_PACE) - (clock() - begun))

    def _next_queue(self, poll: Poll, route: Sequence[pb.MessageQueue]) -> pb.MessageQueue:
        """A readable queue of each broker in turn; of one that no other poll waits at, if there is one.

        Servers look only at the broker, and serve any of its queues."""
        brokers = _brokers_of(route)
        if not brokers:
            return pb.MessageQueue(topic=convert.resource(poll.topic, self._session.config.namespace))
        first = next(self._queue_turn) % len(brokers)
        in_turn = brokers[first:] + brokers[:first]
        asked = {each.broker for each in self._all if each is not poll and each.topic == poll.topic and not each.done}
        chosen = next((queue for queue in in_turn if queue.broker.name not in asked), in_turn[0])
        poll.broker = chosen.broker.name
        return chosen


def _brokers_of(route: Sequence[pb.MessageQueue]) -> list[pb.MessageQueue]:
    """A readable queue of each broker."""
    readable = [queue for queue in route if queue.permission in (pb.READ, pb.READ_WRITE) and not queue.broker.id]
    return list({queue.broker.name: queue for queue in reversed(readable)}.values())


def _note_failure(task: asyncio.Task[None]) -> None:
    """A poll without a waiting receive may fail silently; without this asyncio would log it."""
    if not task.cancelled():
        task.exception()
