"""The asyncio queue push consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

from popclient._arguments import as_timedelta
from popclient._engine.flow import QueueLimits
from popclient._engine.runner import TaskRunner
from popclient._pull.options import require_aware, require_queue
from popclient._queue_push.core import MessageQueueListener, QueuePushCore
from popclient._queue_push.options import PULL_BATCH_BYTES_MAX, MessageModel, QueueOptions
from popclient._queue_push.pull_loop import ServiceState
from popclient._queues.allocation import AllocateStrategy, strategy_of
from popclient._queues.listener import AsyncConcurrentListener, OrderlyListener, is_async
from popclient._queues.offsets import OffsetStore
from popclient._queues.start import ConsumeFromWhere
from popclient._queues.statistics import TopicStatistics
from popclient.aio.push_consumer import _leave_signals, _take_signals
from popclient.config import ClientConfig
from popclient.listening import Interceptor
from popclient.message import FilterExpression, MessageQueue, MessageView
from popclient.simple_consumer import Topics, as_topics


class QueuePushConsumer:
    """Owns whole queues of its topics, shared with the other members of its group, and hands their messages to a
    listener.

    Takes what `popclient.QueuePushConsumer` takes; the listener is a coroutine function, or an OrderlyListener around
    one, and `consume_threads` limits how many of its tasks run at once. Belongs to the event loop of its first use.
    """

    def __init__(
        self,
        endpoints: str | ClientConfig | None,
        group: str,
        topics: Topics,
        listener: AsyncConcurrentListener | OrderlyListener,
        *,
        model: str | MessageModel = MessageModel.CLUSTERING,
        consume_from: str | ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        consume_timestamp: str | datetime | None = None,
        allocate_strategy: str | AllocateStrategy = "AVG",
        offset_store: OffsetStore | None = None,
        client_name: str = "DEFAULT",
        pull_batch_size: int = 32,
        pull_batch_size_in_bytes: int = PULL_BATCH_BYTES_MAX,
        pull_interval: float | timedelta = 0,
        pull_delay_when_exception: float | timedelta = 3,
        pull_threshold_for_queue: int = 1_000,
        pull_threshold_size_for_queue: int = 100,
        pull_threshold_for_topic: int = -1,
        pull_threshold_size_for_topic: int = -1,
        consume_concurrently_max_span: int = 2_000,
        consume_message_batch_max_size: int = 1,
        consume_threads: int = 20,
        consume_threads_min: int | None = None,
        consume_timeout: float | timedelta = 900,
        max_reconsume_times: int = -1,
        suspend_current_queue_time: float | timedelta = 1,
        persist_interval: float | timedelta = 5,
        post_subscription_when_pull: bool = False,
        offset_illegal_delay: float | timedelta = 0,
        drain_timeout: float | timedelta = 30,
        interceptors: Iterable[Interceptor] = (),
        message_queue_listener: MessageQueueListener | None = None,
    ) -> None:
        options = QueueOptions(
            group=group,
            topics=as_topics(topics),
            listener=listener,
            model=MessageModel.of(model),
            consume_from=ConsumeFromWhere.of(consume_from),
            consume_timestamp=consume_timestamp,
            allocate_strategy=strategy_of(allocate_strategy),
            offset_store=offset_store,
            client_name=client_name,
            flow=QueueLimits(
                pull_threshold_for_queue=pull_threshold_for_queue,
                pull_threshold_size_for_queue=pull_threshold_size_for_queue,
                pull_threshold_for_topic=pull_threshold_for_topic,
                pull_threshold_size_for_topic=pull_threshold_size_for_topic,
                consume_concurrently_max_span=consume_concurrently_max_span,
            ),
            interceptors=tuple(interceptors),
            pull_batch_size=pull_batch_size,
            pull_batch_size_in_bytes=pull_batch_size_in_bytes,
            pull_interval=as_timedelta("pull_interval", pull_interval),
            pull_delay_when_exception=as_timedelta("pull_delay_when_exception", pull_delay_when_exception),
            consume_message_batch_max_size=consume_message_batch_max_size,
            consume_threads=consume_threads,
            consume_threads_min=consume_threads_min,
            persist_interval=as_timedelta("persist_interval", persist_interval),
            consume_timeout=as_timedelta("consume_timeout", consume_timeout),
            max_reconsume_times=max_reconsume_times,
            suspend_current_queue_time=as_timedelta("suspend_current_queue_time", suspend_current_queue_time),
            post_subscription_when_pull=post_subscription_when_pull,
            offset_illegal_delay=as_timedelta("offset_illegal_delay", offset_illegal_delay),
            drain_timeout=as_timedelta("drain_timeout", drain_timeout),
        )
        if not is_async(listener):
            raise TypeError(
                f"listener {listener!r} is no coroutine function; write it with `async def`, or use"
                " popclient.QueuePushConsumer, which calls it in threads"
            )
        self._config = ClientConfig.of(endpoints)
        self._core = QueuePushCore(self._config, options, TaskRunner, message_queue_listener)

    async def start(self) -> None:
        """Opens the session, looks the topics up and joins the group; raises NotFound for a group that does not exist,
        UnsupportedByServer and so on. A topic that does not exist is consumed as soon as it does.

        A consumer that could not be started cannot be started again: make a new one.
        """
        await self._core.start()

    async def run(self) -> None:
        """Consumes until SIGTERM or SIGINT (where the loop takes signals), or until somebody closes it; then it is
        closed.

        Raises the server's refusal if that ends it: its rights were withdrawn, its group was deleted.
        """
        ending = asyncio.Event()
        self._core.when_ended = ending.set
        taken = _take_signals(ending.set)
        try:
            async with self:
                await ending.wait()
                _leave_signals(taken)  # whoever asks a second time does not wait for the draining
        finally:
            _leave_signals(taken)
        self._core.raise_refusal()

    @property
    def group(self) -> str:
        return self._core.options.group

    @property
    def client_id(self) -> str:
        return self._core.session.client_id

    @property
    def healthy(self) -> bool:
        """Is the session with the server up?"""
        return self._core.session.healthy

    @property
    def state(self) -> ServiceState:
        return self._core.state

    @property
    def consume_orderly(self) -> bool:
        """Was it given an OrderlyListener?"""
        return self._core.parts.orderly

    @property
    def message_queues(self) -> list[MessageQueue]:
        """The queues that are this consumer's now, in order."""
        return sorted(mq for mq, _ in self._core.parts.owned())

    def statistics(self) -> dict[str, TopicStatistics]:
        """What was pulled and consumed in the last minute, by topic."""
        return self._core.parts.statistics.by_topic()

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The topic's queues, in order. Raises NotFound."""
        return await self._core.queues(topic)

    async def search_offset(self, mq: MessageQueue, moment: datetime) -> int:
        """The offset of the first message that was stored in the queue at that (aware) time or later; its end if there
        is none."""
        require_queue(mq)
        require_aware("moment", moment)
        return await self._core.search_offset(mq, moment)

    async def send_message_back(self, message: MessageView, delay_level: int = 0) -> bool:
        """Hands a message back to the server, to come again by %RETRY%<group>. Has it become a dead letter instead?

        delay_level: 0 by the group's intervals, 1 to 18 by the delay table, negative makes a dead letter at once. What
        the listener answers for the message counts nevertheless.
        """
        return await self._core.send_message_back(message, delay_level)

    def suspend(self) -> None:
        """Pulls nothing more, until `resume`; what is here already is consumed."""
        self._core.suspend()

    def resume(self) -> None:
        self._core.resume()

    async def subscribe(self, topic: str, expression: str | FilterExpression = "*") -> None:
        """One more topic, or another filter for one. A topic that does not exist is consumed as soon as it does."""
        await self._core.subscribe(topic, as_topics({topic: expression})[topic])

    async def unsubscribe(self, topic: str) -> None:
        """One topic less: its queues are given up."""
        await self._core.unsubscribe(topic)

    async def close(self) -> None:
        """Stops pulling, waits up to `drain_timeout` for what the listener has begun, commits the progress, gives the
        queues up and says goodbye within `close_timeout`. What the listener has not begun is for the next owner.

        Closing twice is fine. In the listener it returns at once, and the consumer ends after it.
        """
        closing = self._core.begin_closing(self._core.options.drain_timeout.total_seconds())
        if not self._core.is_inside():
            await asyncio.shield(closing)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<aio.QueuePushConsumer {self._config.endpoints} group={self.group!r} {self.state}>"
