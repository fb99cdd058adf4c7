"""The pulls of one consumer: when a queue is pulled, and how the answer is handled (requirements B5 to B22)."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Final, Protocol

from popclient._consume.context import ConsumeMessageService
from popclient._consume.process_queue import ProcessQueue
from popclient._consume.statistics import Statistics
from popclient._engine.clock import Clock
from popclient._engine.flow import FLOW_CONTROL_PAUSE, FlowTimes, QueueLimits
from popclient._engine.interceptors import InterceptorChain
from popclient._progress.remote import RemoteOffsetStore
from popclient._progress.store import NO_OFFSET, OffsetStore, ReadOffsetType
from popclient._queue_push.options import QueueOptions
from popclient._queue_push.pull_requests import PullMessageService, PullRequest
from popclient._queues import pull as pull_call
from popclient._queues.pull import Pulled, PullStatus, backwards, pull_extras, pull_status
from popclient._queues.subscription import TopicSubscription, filter_by_tag, is_retry_topic
from popclient._session.repeating import PULLS, level_of
from popclient._session.session import Session
from popclient._tasks import Tasks
from popclient._version import log
from popclient.errors import PopError, TooManyRequests, for_caller
from popclient.message import MessageView

# Seconds until a queue is pulled again, and why.
NOT_RUNNING: Final = 3.0
NOT_LOCKED: Final = 3.0
NO_SUBSCRIPTION: Final = 3.0
SUSPENDED: Final = 1.0
# A server that holds no pull must not make its clients spin: empty answers are this far apart (requirement A11).
LEAST_PACE: Final = 1.0
HOLD: Final = timedelta(seconds=15)


class PullContext(Protocol):
    """The consumer, as its pulls see it."""

    @property
    def running(self) -> bool: ...
    @property
    def suspended(self) -> bool: ...
    @property
    def sub_version(self) -> int: ...
    def subscription(self, topic: str, /) -> TopicSubscription | None: ...
    def limits(self, topic: str, /) -> QueueLimits: ...
    def give_up_illegal(self, request: PullRequest, correction: int, /) -> None:
        """The request's offset is not in the queue."""

    def generation_learned(self, request: PullRequest, generation: int, /) -> None:
        """The topic of the request's queue has this generation."""

    def topic_recreated(self, request: PullRequest, generation: int, /) -> None:
        """The topic has another generation than the request's queue, which is not pulled any more."""


class Pulls:
    """Makes the pulls of one consumer.

    orderly: no limit for the span of what is cached. locks: a queue is pulled only while this consumer has its lock.
    """

    def __init__(
        self,
        session: Session,
        options: QueueOptions,
        context: PullContext,
        clock: Clock,
        pull_service: PullMessageService,
        consume_service: ConsumeMessageService,
        offset_store: OffsetStore,
        statistics: Statistics,
        interceptors: InterceptorChain,
        *,
        orderly: bool,
        locks: bool,
    ) -> None:
        self._session = session
        self._options = options
        self._context = context
        self._clock = clock
        self._service = pull_service
        self._consume_service = consume_service
        self._offset_store = offset_store
        self._statistics = statistics
        self._interceptors = interceptors
        self._orderly = orderly
        self._locks = locks
        self._flow_times = FlowTimes()
        self._tasks = Tasks()
        self._stopped = False

    def again(self, request: PullRequest, seconds: float = 0.0) -> None:
        """Pulls again for the request after so many seconds."""
        if seconds > 0:
            self._service.execute_later(self.pull, request, seconds)
        else:
            self._service.execute_immediately(self.pull, request)

    async def stop(self) -> None:
        """Begins no more pulls, and cancels those that run."""
        self._stopped = True
        self._tasks.cancel()
        await self._tasks.ended()

    # ---- Before a pull ----

    def pull(self, request: PullRequest) -> None:
        """Pulls now, or later. The request of a dropped queue ends here (requirement B16)."""
        if request.process_queue.dropped or self._stopped:
            return
        request.process_queue.pulled(self._clock.now())
        if (pause := self._pause(request)) is None:
            self._tasks.spawn(self._pull(request))
        else:
            self.again(request, pause)

    def _pause(self, request: PullRequest) -> float | None:
        """The seconds until a later try; None if the queue may be pulled now."""
        if not self._context.running:
            return NOT_RUNNING
        if self._context.suspended:
            return SUSPENDED
        if self._flows_over(request):
            return FLOW_CONTROL_PAUSE
        if self._locks and not request.process_queue.locked:
            request.previously_locked = False
            return NOT_LOCKED
        if self._context.subscription(request.message_queue.topic) is None:
            return NO_SUBSCRIPTION
        return None

    def _flows_over(self, request: PullRequest) -> bool:
        cached = request.process_queue.cached
        limits = self._context.limits(request.message_queue.topic)
        exceeded = limits.exceeded(cached, orderly=self._orderly, unfinished_span=request.process_queue.unfinished_span)
        if exceeded is None:
            return False
        if self._flow_times.hit(exceeded):
            times = self._flow_times.times(exceeded)
            log.warning("%s", limits.sentence(request.message_queue, cached, exceeded, times))
        return True

    # ---- A pull ----

    async def _pull(self, request: PullRequest) -> None:
        mq, version = request.message_queue, self._context.sub_version
        subscription = self._context.subscription(mq.topic)
        try:
            if subscription is None or not await self._starts_right(request):
                self.again(request, NO_SUBSCRIPTION)
                return
            began = self._clock.now()
            status, answer = await self._ask(request, subscription)
        except Exception as failure:  # noqa: BLE001  after any failure the queue must be pulled again
            self.again(request, self._after(failure, request, version))
            return
        took = self._clock.now() - began
        if request.process_queue.dropped:
            log.debug("what was pulled of %s is thrown away: the queue was given up", mq)
            self._interceptors.after_receive(mq.topic, (), None)
        elif self._context.suspended:  # the pull was open before; the same offset is pulled again after `resume`
            self._interceptors.after_receive(mq.topic, (), None)
            self.again(request, SUSPENDED)
        else:
            self._interceptors.after_receive(mq.topic, answer.messages, None)
            self._statistics.pulled(mq.topic, took, len(answer.messages))
            self._answered(request, status, answer, subscription, took)

    async def _ask(self, request: PullRequest, subscription: TopicSubscription) -> tuple[PullStatus, Pulled]:
        topic = request.message_queue.topic
        self._interceptors.before_receive(topic)
        try:
            answer = await self._call(request, subscription)
            status = pull_status(answer.code, answer.next_offset, request.next_offset)
        except PopError as failure:
            self._interceptors.after_receive(topic, (), failure)
            raise
        return status, answer

    async def _starts_right(self, request: PullRequest) -> bool:
        """For orderly consumers: the first pull after a lock begins at the end of the last owner (requirement F5)."""
        if not self._locks or request.previously_locked:
            return True
        offset = await self._offset_store.read_offset(request.message_queue, ReadOffsetType.READ_FROM_STORE)
        if self._is_another(request, generation := self._offset_store.generation(request.message_queue)):
            self._context.topic_recreated(request, generation)
            return False
        if offset == NO_OFFSET:  # no other member had the queue: this owner begins where it did
            offset = request.next_offset
        if offset < 0:
            return False
        if offset < request.next_offset:
            log.warning(
                "%s begins at %d, not at %d: the progress of its last owner came late",
                request.message_queue,
                offset,
                request.next_offset,
            )
        request.previously_locked = True
        request.next_offset = offset
        return True

    async def _call(self, request: PullRequest, subscription: TopicSubscription) -> Pulled:
        mq, store = request.message_queue, self._offset_store
        commit_offset, resets = 0, 0
        if isinstance(store, RemoteOffsetStore):  # a store elsewhere, or of the user's own, has its own ways
            commit_offset = await store.read_offset(mq, ReadOffsetType.READ_FROM_MEMORY)
            resets = store.resets(mq)
        extras = pull_extras(
            hold=HOLD,
            commit_offset=commit_offset,
            resets=resets,
            sub_version=self._context.sub_version,
            post_subscription=self._options.post_subscription_when_pull,
            generation=request.process_queue.generation,
            max_bytes=self._options.pull_batch_size_in_bytes,
        )
        return await pull_call.pull(
            self._session,
            self._options.group,
            mq,
            request.next_offset,
            batch_size=self._options.pull_batch_size,
            expression=subscription.filter_expression,
            hold=HOLD,
            extras=extras,
        )

    def _after(self, failure: Exception, request: PullRequest, version: int) -> float:
        """Seconds until the queue is pulled again. A refusal that is final ends the consumer."""
        if isinstance(failure, TooManyRequests):
            return PULLS.soon
        if version != self._context.sub_version:  # it was refused or failed while the subscription changed
            return 0.0
        pause = self._options.pull_delay_when_exception.total_seconds()
        if isinstance(failure, PopError) and self._session.give_up(failure):
            return pause
        if not is_retry_topic(request.message_queue.topic):
            group, mq, why = self._options.group, request.message_queue, str(for_caller(failure))
            level = (
                logging.DEBUG if why == request.logged else level_of(failure)
            )  # only the first of a kind is a warning
            log.log(level, "group %s pulls %s again in %g s: %s", group, mq, pause, why)
            request.logged = why
        return pause

    # ---- Its answer ----

    def _answered(
        self, request: PullRequest, status: PullStatus, answer: Pulled, subscription: TopicSubscription, took: float
    ) -> None:
        if self._is_another(request, answer.generation):
            self._context.topic_recreated(request, answer.generation)
            return
        if answer.generation and not request.process_queue.generation:
            self._context.generation_learned(request, answer.generation)
        if status is PullStatus.OFFSET_ILLEGAL:
            self._context.give_up_illegal(request, answer.next_offset)
            return
        first = answer.messages[0].queue_offset if answer.messages else None
        if (sentence := backwards(request.next_offset, answer.next_offset, first)) is not None:
            log.warning("%s: %s", request.message_queue, sentence)
        request.next_offset = answer.next_offset
        messages = filter_by_tag(answer.messages, subscription.filter_expression)
        if messages:
            request.quiet = False
            self._found(request, messages)
            self.again(request, self._options.pull_interval.total_seconds())
        else:
            self._correct_tags_offset(request)
            self.again(request, self._pace(request, took) if status is PullStatus.NO_NEW_MSG else 0.0)

    def _is_another(self, request: PullRequest, generation: int) -> bool:
        """Whether the topic was recreated since the queue was taken up."""
        known = request.process_queue.generation
        return 0 not in (known, generation) and known != generation

    def _found(self, request: PullRequest, messages: list[MessageView]) -> None:
        pq: ProcessQueue = request.process_queue
        starts = pq.put(messages)
        self._consume_service.submit(messages, request.message_queue, pq, starts)

    def _correct_tags_offset(self, request: PullRequest) -> None:
        """If nothing is cached, messages that no filter wants count as consumed (requirements B8, B13)."""
        if request.process_queue.is_empty:
            self._offset_store.update_offset(request.message_queue, request.next_offset, True)

    def _pace(self, request: PullRequest, took: float) -> float:
        """Seconds until the next pull. One empty answer may be quick; a server that holds none would have us spin."""
        was_quiet, request.quiet = request.quiet, True
        return max(0.0, LEAST_PACE - took) if was_quiet else 0.0
