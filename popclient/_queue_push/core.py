"""The queue push consumer's core, in one event loop; the synchronous and the asyncio one are its two faces.

members ─ rebalance ─ pull requests ─ dispatcher ─ pull ─ process queue ─ consume service ─ runner ─ listener
                           ▲                        │                           │
                           └────── next offset ─────┘      offset store ◄───────┴─ done; failed: handed back
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Final

from popclient._engine.clock import LoopClock, PeriodicTasks, sleep
from popclient._engine.flow import QueueLimits
from popclient._engine.life import ConsumerLife
from popclient._engine.runner import MakeRunner
from popclient._progress.remote import RemoteOffsetStore
from popclient._queue_push.options import QueueOptions
from popclient._queue_push.parts import Parts
from popclient._queue_push.pull_loop import PullLoop, ServiceState, shared_pull_loop
from popclient._queue_push.pull_requests import PullRequest
from popclient._queue_push.rebalance import RebalanceService
from popclient._queues import calls
from popclient._queues.subscription import TopicSubscription
from popclient._queues.wire import has_legacy, open_session, unsupported
from popclient._session.repeating import is_final
from popclient._tasks import Tasks
from popclient._version import log
from popclient.config import ClientConfig
from popclient.errors import NotFound, PopError, PreconditionFailed
from popclient.message import FilterExpression, MessageQueue, MessageView
from popproto.v2 import definition_pb2 as pb

PERSIST_FIRST: Final = 10.0  # seconds (requirement H7)
RENEW_EVERY, RENEW_FIRST = 20.0, 1.0  # seconds (requirement F3)
ASK_AGAIN: Final = 1.0  # seconds until it asks again what an operator has moved
RESETS: Final = "popmq.resets"


class QueuePushCore(ConsumerLife):
    """One queue push consumer. Belongs to one event loop.

    pull_loop: the services that it shares with other consumers; default: those of the event loop.
    """

    def __init__(
        self,
        config: ClientConfig,
        options: QueueOptions,
        make_runner: MakeRunner,
        pull_loop: PullLoop | None = None,
    ) -> None:
        super().__init__(options.group, options.drain_timeout)
        waits = config.wait_for_topic is not False  # as RocketMQ 4 does (requirement N2)
        self.config = config = replace(config, wait_for_topic=waits)
        self.options = options
        self.state = ServiceState.CREATE_JUST
        self.suspended = False
        self._pull_loop = pull_loop
        self._clock = LoopClock() if pull_loop is None else pull_loop.clock
        self.parts = Parts(config, options, make_runner, self._clock, self._was_reset)
        self.session = self.parts.session
        self.session.on_notice = self._handle_notice
        self.session.on_refused = self._end
        self._periodic = PeriodicTasks(self._clock)
        self._rebalancing = RebalanceService(self._clock, self)
        self._tasks = Tasks()
        self._agreeing = asyncio.Lock()  # the server judges one change of the subscription at a time
        self._shifted = False  # whether its part of a topic has changed since this round began

    # ---- Start ----

    async def start(self) -> None:
        """Opens the session, looks the topics up and joins the group. Raises refusals. A topic may be created later.

        One that could not be started is START_FAILED for good (requirement J15).
        """
        if self.state is ServiceState.START_FAILED:
            raise PreconditionFailed(
                f"the consumer of group {self.options.group!r} is {self.state}: its start has failed before; make a"
                " new one"
            )
        await super().start()

    async def _start(self) -> None:
        try:
            await open_session(self.session)
            for topic in self.options.topics:
                await self._look_up(topic)
            if self.parts.locks is not None and not await has_legacy(self.session):
                raise unsupported(self.session, "LockQueues, which orderly consumption needs,")
            await self.parts.offset_store.load()
            await self._require_progress()
        except BaseException:
            self.state = ServiceState.START_FAILED
            await self.session.close(self.config.close_timeout)  # else it stays a member that reads nothing
            raise
        self._join(self._pull_loop or shared_pull_loop())
        self.state = ServiceState.RUNNING

    async def _require_progress(self) -> None:
        """Raises the refusal of a group that consumes message by message, before any queue is taken up."""
        known = next(filter(self.session.has_topic, self.parts.subscribed.topics), None)
        if known is not None and isinstance(self.parts.offset_store, RemoteOffsetStore):
            some = (await self.parts.sharing.queues(known))[:1]
            try:
                await calls.fetch_offsets(self.session, self.options.group, some) if some else None
            except PopError as failure:
                if is_final(failure) and failure.code != pb.TOPIC_NOT_FOUND:
                    raise

    async def _look_up(self, topic: str) -> None:
        """Looks the topics up. One that does not exist yet may be created later (requirement N2). Raises refusals."""
        try:
            await self.session.route(topic)
        except NotFound as failure:
            if failure.code != pb.TOPIC_NOT_FOUND or not self.parts.is_awaited(topic, failure):
                raise

    def _join(self, pull_loop: PullLoop) -> None:
        """In the order of RocketMQ: the channel is open; then periodic work, pulls, rebalancing."""
        parts, self._pull_loop = self.parts, pull_loop
        self._periodic.every(self.options.persist_interval.total_seconds(), self._persist, PERSIST_FIRST)
        if parts.locks is not None:
            self._periodic.every(RENEW_EVERY, parts.locks.renew, RENEW_FIRST)
        if not parts.orderly:
            self._periodic.every(parts.consume_timeout, parts.consume_service.clean_expired)
        self._pulls = parts.make_pulls(self, pull_loop)
        self._rebalance = parts.make_rebalance(self._pulls, self._changed, self._rebalancing.retry_refused)
        pull_loop.join(self._rebalancing)

    async def _persist(self) -> None:
        await self.parts.offset_store.persist_all(list(self.parts.table))

    # ---- What pulls ask ----

    @property
    def running(self) -> bool:
        return self.state is ServiceState.RUNNING

    @property
    def sub_version(self) -> int:
        return self.parts.subscribed.version

    def subscription(self, topic: str, /) -> TopicSubscription | None:
        return self.parts.subscribed.get(topic)

    def limits(self, topic: str, /) -> QueueLimits:
        return self.parts.subscribed.limits(topic)

    def give_up_illegal(self, request: PullRequest, correction: int, /) -> None:
        mq, pq = request.message_queue, request.process_queue
        log.warning("%s has no offset %d, the server corrects it to %d", mq, request.next_offset, correction)
        self._rebalance.correct(mq, pq, correction)

        async def corrected() -> None:
            await sleep(self._clock, self.options.offset_illegal_delay.total_seconds())
            await self._rebalance.corrected(mq, pq)
            self._request_rebalance()

        self._tasks.spawn(corrected())

    def generation_learned(self, request: PullRequest, generation: int, /) -> None:
        topic = request.message_queue.topic
        request.process_queue.generation = generation
        self.parts.offset_store.note_generation(topic, generation)
        self.parts.generations.met(topic, generation)

    def topic_recreated(self, request: PullRequest, generation: int, /) -> None:
        mq = request.message_queue
        log.warning("topic %s was deleted and recreated: %s begins at its first message", mq.topic, mq)
        request.process_queue.dropped = True
        self.parts.beginning.topic_recreated(mq)
        self.generation_learned(request, generation)
        self._tasks.spawn(self._restart_topic(mq))

    async def _restart_topic(self, mq: MessageQueue) -> None:
        with contextlib.suppress(PopError):  # then the route is looked up later, as usual
            await self.session.routes.refresh(mq.topic)  # it may have more queues now, or fewer
        await self._restart([mq])

    # ---- Sharing queues ----

    async def do_rebalance(self) -> bool:
        """One round. A suspended consumer skips it (requirement J14)."""
        if self.suspended or not self.running or self._closing is not None:
            return True
        self._shifted = False
        balanced = await self._rebalance.do_rebalance()
        if self._shifted:
            self.parts.subscribed.bump()
            await self.parts.subscribed.tell(self.session)
        return balanced

    def _changed(self, topic: str, queues: list[MessageQueue], mine: list[MessageQueue]) -> None:
        """This consumer's part of a topic has changed (requirement J12)."""
        owned = sum(mq.topic == topic for mq, _ in self.parts.owned())
        self.parts.subscribed.owns(topic, owned)
        self._shifted = True
        if (listener := self.options.message_queue_listener) is not None:
            try:
                listener(topic, tuple(queues), tuple(mine))
            except Exception:  # noqa: BLE001  a listener to changes must not do harm
                log.exception("%r failed", listener)

    def _request_rebalance(self) -> None:
        if self.running:
            self._rebalancing.wake()

    def _handle_notice(self, name: str) -> None:
        if not self.running:
            return
        if name == RESETS:
            self._tasks.spawn(self._follow_resets())
        else:  # at once: as long as this consumer has a queue that the next owner pulls too, messages are repeated
            self._rebalancing.wake_at_once()

    # ---- Resets ----

    async def _follow_resets(self) -> None:
        """An operator has moved the group's progress. Begins anew in those queues of this consumer that were moved."""
        store = self.parts.offset_store
        if not isinstance(store, RemoteOffsetStore):
            log.warning("group %s was reset on the server, but keeps its progress elsewhere", self.options.group)
            return
        owned = [mq for mq, _ in self.parts.owned()]
        try:
            progress = await calls.fetch_offsets(self.session, self.options.group, owned) if owned else {}
        except PopError as failure:
            log.warning("what was reset of group %s is not known yet: %s", self.options.group, failure)
            self._clock.call_later(ASK_AGAIN, lambda: self._handle_notice(RESETS))
            return
        await self._restart([mq for mq in owned if progress[mq].resets > store.resets(mq)])

    def _was_reset(self, mq: MessageQueue) -> None:
        """A commit was refused because it was based on the progress before a reset."""
        if self.running:
            self._tasks.spawn(self._restart([mq]))

    async def _restart(self, mqs: Iterable[MessageQueue]) -> None:
        await self._rebalance.restart(mqs)
        self._rebalancing.wake_at_once()

    # ---- While it runs ----

    def suspend(self) -> None:
        """Pulls nothing more until `resume`. Messages that are here already are consumed; those of an open pull are
        pulled again."""
        self.suspended = True

    def resume(self) -> None:
        self.suspended = False
        self._request_rebalance()

    async def subscribe(self, topic: str, expression: FilterExpression) -> None:
        """Adds a topic, or changes its filter. The topic may be created later."""
        await self._look_up(topic)
        async with self._agreeing:
            subscribed, before = self.parts.subscribed, self.parts.subscribed.get(topic)
            subscribed.put(topic, expression)
            try:
                await subscribed.agree(self.session)
            except PopError:
                if before is None:
                    subscribed.remove(topic)
                else:
                    subscribed.put(topic, before.filter_expression)
                subscribed.note(self.session)
                raise
        self._request_rebalance()

    async def unsubscribe(self, topic: str) -> None:
        """Removes a topic and gives its queues up (requirement J13)."""
        self.parts.subscribed.remove(topic)
        self.parts.generations.forget(topic)
        await self.parts.subscribed.tell(self.session)
        self._request_rebalance()

    # ---- Asked for by the user ----

    async def queues(self, topic: str) -> list[MessageQueue]:
        return await self.parts.sharing.queues(topic)

    async def search_offset(self, mq: MessageQueue, moment: datetime) -> int:
        return await calls.query_offset(self.session, mq, moment)

    async def send_message_back(self, message: MessageView, delay_level: int) -> bool:
        options = self.options
        if not options.is_clustering:
            raise PreconditionFailed(
                f"the consumer of group {options.group!r} is BROADCASTING and hands nothing back, because each member"
                " has the message; use CLUSTERING"
            )
        most = options.most_reconsume_times
        return await calls.send_message_back(self.session, options.group, message, delay_level, most)

    # ---- The end ----

    def is_inside(self) -> bool:
        return self.parts.runner.is_inside()

    def _call_no_more(self) -> None:
        self.parts.shared.closing = True

    async def _close(self, drain_timeout: float) -> None:
        """Stops pulling, lets the listener finish, commits, gives the queues up, and says goodbye."""
        clock = asyncio.get_running_loop().time
        patience = 0.0  # an interrupted closing does not wait for the goodbye either
        try:
            await self._stop_starting()
            deadline = clock() + drain_timeout + self.config.close_timeout
            if self.running:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        await self._leave(drain_timeout)
            await self.parts.offset_store.close()
            patience = max(deadline - clock(), 0.0)
        finally:
            self.state = ServiceState.SHUTDOWN_ALREADY
            self.parts.consume_service.stop()
            self.parts.runner.stop()
            await self.session.close(min(patience, self.config.close_timeout))
            self.when_ended()

    async def _leave(self, drain_timeout: float) -> None:
        """The state stays RUNNING until the queues are given up: calls that end before that still count."""
        await self._pulls.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_timeout):
                await self.parts.runner.idle()
                await self.parts.consume_service.flush()
        await self._periodic.stop()
        self._tasks.cancel()
        if self._pull_loop is not None:
            await self._pull_loop.leave(self._rebalancing)
        await self._rebalance.give_up_all()
