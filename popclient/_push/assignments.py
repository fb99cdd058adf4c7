"""Polls of the server: this client asks what it is to poll, and keeps a poll on its way for each assignment.

One poll after the other is enough for a topic that has little. While polls come back full, up to three more help: the
next one is on its way while the server still works on the one before. A poll asks for 32 messages, and for up to 128
while the listener is quick and the topic has many: so a slow consumer does not take what others could work on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, Final

from popclient._engine.flow import CacheBudget, RecentWork
from popclient._engine.interceptors import InterceptorChain
from popclient._engine.options import HOLD_MAX, PushOptions
from popclient._engine.receive import (
    BATCH_SIZE,
    LEAST_PACE,
    ONE_FRAME_MAX,
    RECALL_PATIENCE,
    RECEIVE_BATCH,
    Receive,
    receive_request,
)
from popclient._session import convert
from popclient._session.repeating import POLLS, Pauses, level_of
from popclient._session.session import Session
from popclient._tasks import Tasks, begin_task
from popclient._version import log
from popclient.errors import ClientClosed, NotFound, PopError, check
from popclient.message import MessageView
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc

SCAN_INTERVAL: Final = 5.0
LONG_POLL: Final = 20.0  # if the server has not told one
# Servers that know of auto_renew hold longer and renew themselves; others refuse a receive without a duration.
INVISIBLE: Final = timedelta(seconds=60)
PAUSE_AFTER_DEFECT: Final = 1.0
GUESSED_BYTES: Final = 64 * 1024  # of a message, before the first one has arrived

HELPERS: Final = 3

Assigned = tuple[str, str, int]  # topic, broker, queue


class PollAssignment:
    """What this client is to poll. It has one poll of its own, and helping polls while the topic has many messages."""

    def __init__(self, topic: str, queue: pb.MessageQueue) -> None:
        self.topic = topic
        self.queue = queue
        self.message_bytes = GUESSED_BYTES
        self.has_many = False  # whether the last poll was full
        self.polls: set[asyncio.Task[None]] = set()

    def begin(self, poll: Coroutine[Any, Any, None]) -> None:
        task = begin_task(poll)
        self.polls.add(task)
        task.add_done_callback(self.polls.discard)

    def end(self) -> list[asyncio.Task[None]]:
        for task in self.polls:
            task.cancel()
        return list(self.polls)


class Polling:
    """The polls of one push consumer.

    arrived: gets the messages of a poll. return_late: gets messages that arrived while their poll was cancelled.
    keeps_up: returns when the consumer can take more.
    """

    def __init__(
        self,
        session: Session,
        options: PushOptions,
        budget: CacheBudget,
        interceptors: InterceptorChain,
        arrived: Callable[[Sequence[MessageView]], None],
        return_late: Callable[[Sequence[MessageView]], None],
        keeps_up: Callable[[], Awaitable[None]],
    ) -> None:
        self._session = session
        self._options = options
        self._group = convert.resource(options.group, session.config.namespace)
        self._budget = budget
        self._recent_work = RecentWork()
        self._interceptors = interceptors
        self._arrived = arrived
        self._return_late = return_late
        self._keeps_up = keeps_up
        self._assignments: dict[Assigned, PollAssignment] = {}
        self._recall_patience = RECALL_PATIENCE
        self._tasks = Tasks()

    async def start(self) -> None:
        """Begins to poll what is assigned. Raises a PopError, and polls nothing, if a topic or the group is refused."""
        try:
            for topic in self._options.topics:
                await self._scan_if_exists(topic)
        except BaseException:
            await self._end_polls()
            raise
        self._tasks.spawn(self._keep_scanning())

    async def stop(self, patience: float) -> None:
        """Ends all polls. Calls `return_late` with what the server has granted them, within `patience` seconds."""
        self._recall_patience = min(patience, RECALL_PATIENCE)
        self._tasks.cancel()
        await self._tasks.ended()
        await self._end_polls()

    async def _end_polls(self) -> None:
        polls = [poll for assignment in self._assignments.values() for poll in assignment.end()]
        self._assignments.clear()
        await asyncio.gather(*polls, return_exceptions=True)

    # ---- Assignments ----

    async def _keep_scanning(self) -> None:
        while True:
            await asyncio.sleep(min(SCAN_INTERVAL, LEAST_PACE) if self._session.routes.missing else SCAN_INTERVAL)
            for topic in self._options.topics:
                try:
                    await self._scan_if_exists(topic)
                except PopError as failure:
                    if not self._session.give_up(failure):
                        log.debug("assignments of %s stay as they were: %s", topic, failure)

    async def _scan_if_exists(self, topic: str) -> None:
        try:
            await self._scan(topic)
        except NotFound as failure:
            if not self._session.routes.awaits(topic, failure):
                raise

    async def _scan(self, topic: str) -> None:
        """Asks what this client is to poll of a topic; ends the polls that it lost, and begins new ones."""
        request = rpc.QueryAssignmentRequest(
            topic=convert.resource(topic, self._session.config.namespace),
            group=self._group,
            endpoints=convert.endpoints(self._session.transport.endpoints),
        )
        answer = await self._session.transport.unary(
            lambda link: link.messaging.QueryAssignment, request, self._session.config.request_timeout
        )
        check(answer.status)
        self._session.routes.is_there(topic)
        assigned = {(topic, q.broker.name, q.id): q for q in (each.message_queue for each in answer.assignments)}
        for gone in [known for known in self._assignments if known[0] == topic and known not in assigned]:
            self._assignments.pop(gone).end()
        for key, queue in assigned.items():
            if key not in self._assignments:
                assignment = self._assignments[key] = PollAssignment(topic, queue)
                assignment.begin(self._keep_polling(assignment))

    # ---- Polls ----

    async def _keep_polling(self, assignment: PollAssignment) -> None:
        while True:
            try:
                if await self._poll(assignment) and self._may_help(assignment):
                    assignment.begin(self._help(assignment))
            except Exception:  # noqa: BLE001  the task's outermost line: a defect must not end the polling without a log
                log.exception("polling %s failed; the next poll follows", assignment.topic)
                await asyncio.sleep(PAUSE_AFTER_DEFECT)

    def _may_help(self, assignment: PollAssignment) -> bool:
        """PopMQ keeps message groups in order for any number of polls; elsewhere two polls at once might swap them.

        The budget must allow as many helpers for every assignment. Otherwise those of a busy topic would leave nothing
        for the other topics.
        """
        polls = len(assignment.polls) + 1
        has_room = self._options.max_cached_messages >= polls * self._wanted(assignment) * self._own_polls
        return polls <= HELPERS + 1 and has_room and (self._session.is_popmq or not self._session.keeps_order)

    def _wanted(self, assignment: PollAssignment) -> int:
        """How many messages a poll asks for, if the budget allows it."""
        given = self._options.receive_batch_size
        if RECEIVE_BATCH not in self._session.capabilities:
            return min(self._session.settings.subscription.receive_batch_size or BATCH_SIZE, given or BATCH_SIZE)
        if given is not None:
            return given
        lately = self._recent_work.count(self._budget.settled, asyncio.get_running_loop().time())
        return min(max(lately, BATCH_SIZE), ONE_FRAME_MAX) if assignment.has_many else BATCH_SIZE

    @property
    def _own_polls(self) -> int:
        """How many polls there are without the helpers: one for each assignment."""
        return max(len(self._assignments), len(self._options.topics))

    async def _help(self, assignment: PollAssignment) -> None:
        try:
            while await self._poll(assignment):
                pass
        except Exception:  # noqa: BLE001  the task's outermost line, as above
            log.exception("a helping poll of %s failed; the first one goes on", assignment.topic)

    async def _poll(self, assignment: PollAssignment) -> bool:
        """Polls once, as soon as the budget allows it. Returns whether there are probably more messages."""
        await self._keeps_up()
        wanted = self._wanted(assignment)
        permit = await self._budget.acquire(wanted, assignment.message_bytes, self._own_polls)
        try:
            views = await self._ask_until_answered(assignment, permit.messages)
            self._arrived(views)
        finally:
            self._budget.release(permit)
        if views:
            assignment.message_bytes = max(len(view._wire.body) for view in views)
        # An answer with large bodies has fewer messages than it was asked for.
        assignment.has_many = len(views) >= min(wanted, BATCH_SIZE)
        return assignment.has_many

    async def _ask_until_answered(self, assignment: PollAssignment, count: int) -> Sequence[MessageView]:
        """The messages that the server returns; none if the long poll ends empty.

        After a failure the request is repeated with the same attempt id. If the answer was lost, the server repeats it
        (requirement K9), so no message stays held for a client that does not know of it.
        """
        topic, request = assignment.topic, self._request(assignment, count)
        clock = asyncio.get_running_loop().time
        pauses = Pauses(POLLS)
        last_failure = ""
        while True:
            begun = clock()
            self._interceptors.before_receive(topic)
            try:
                views = await self._receive(request)
            except ClientClosed:
                raise
            except PopError as failure:
                self._interceptors.after_receive(topic, (), failure)
                await self._pause(topic, failure, last_failure, pauses)
                last_failure = str(failure)
            else:
                self._session.routes.is_there(topic)
                self._interceptors.after_receive(topic, views, None)
                if not views:
                    await asyncio.sleep(min(self._long_poll, LEAST_PACE) - (clock() - begun))
                return views

    async def _pause(self, topic: str, failure: PopError, last_failure: str, pauses: Pauses) -> None:
        """Until the next try. If there must be none, the consumer ends, and this lasts until its polls are cancelled.

        last_failure: the failure before this one. Only the first of a kind is a warning: a server that stays down must
        not fill the log.
        """
        if self._session.routes.awaits(topic, failure):
            await asyncio.sleep(LEAST_PACE)
        elif self._session.give_up(failure):
            await asyncio.Event().wait()
        else:
            level = logging.DEBUG if str(failure) == last_failure else level_of(failure)
            log.log(level, "group %s polls %s again: %s", self._options.group, topic, failure)
            await asyncio.sleep(pauses.after(failure))

    async def _receive(self, request: rpc.ReceiveMessageRequest) -> Sequence[MessageView]:
        receive = Receive(self._session, request, HOLD_MAX, self._long_poll, repeats=True)
        try:
            await receive.run()
        except asyncio.CancelledError:
            await receive.recall(self._recall_patience)
            self._return_late(receive.brought)
            raise
        return receive.brought

    def _request(self, assignment: PollAssignment, count: int) -> rpc.ReceiveMessageRequest:
        expression = self._options.topics[assignment.topic]
        return receive_request(self._group, assignment.queue, expression, count, INVISIBLE, auto_renew=True)

    @property
    def _long_poll(self) -> float:
        """Seconds, from the settings of the server."""
        last_failure: timedelta = self._session.settings.subscription.long_polling_timeout.ToTimedelta()
        return last_failure.total_seconds() or LONG_POLL
