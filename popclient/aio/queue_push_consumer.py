"""The asyncio queue push consumer."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from popclient._consume.listener import AsyncConcurrentListener, OrderlyListener, is_async
from popclient._consume.statistics import TopicStatistics
from popclient._engine.flow import QueueLimits
from popclient._engine.options import Topics, as_topics
from popclient._loop import Here
from popclient._progress.start import ConsumeFromWhere
from popclient._progress.store import OffsetStore
from popclient._pull.options import require_aware, require_queue
from popclient._queue_push.core import QueuePushCore
from popclient._queue_push.options import PULL_BATCH_BYTES_MAX, MessageModel, MessageQueueListener, QueueOptions
from popclient._queue_push.pull_loop import ServiceState
from popclient._queues.allocation import AllocateStrategy
from popclient.aio.base import ListenerConsumer
from popclient.aio.callbacks import require_kind, runner_of
from popclient.config import ClientConfig
from popclient.listening import Interceptor
from popclient.message import FilterExpression, MessageQueue, MessageView


# sync: Belongs to ... use. => Safe in threads.
# sync: a coroutine function or an OrderlyListener around one => a function or an OrderlyListener around one
# sync: how many tasks call => how many threads call
class QueuePushConsumer(ListenerConsumer[QueuePushCore]):
    """Owns whole queues of its topics, shared with the other members of its group, and hands their messages to a
    listener, as RocketMQ 4's DefaultMQPushConsumer does.

    Progress is an offset per queue: the messages before it are consumed. So a message that takes long holds back the
    progress of its queue, and after a restart the messages behind it are consumed again. For progress message by
    message, and order by message group, use PushConsumer. Needs a PopMQ server; elsewhere `start` raises
    UnsupportedByServer. Belongs to the event loop of its first use.

    endpoints: "host:port;host:port", a ClientConfig, or nothing (environment ROCKETMQ_ENDPOINTS).
    topics: one, several, or a mapping to what is wanted of each: "*", tags such as "a || b", or a FilterExpression. All
        members of a group must subscribe to the same.
    listener: a coroutine function or an OrderlyListener around one, called with `(messages, context)`.
        A function gets messages in any order. It returns ConsumeConcurrentlyStatus.CONSUME_SUCCESS, with
        `context.ack_index` if only the first ones are done, or RECONSUME_LATER. A message that fails goes back to the
        server and comes again by %RETRY%<group>, with a `delivery_attempt` that is higher by one.
        An OrderlyListener gets the messages of a queue one batch after the other and returns a ConsumeOrderlyStatus. A
        batch that fails is tried again in place.
    model: CLUSTERING shares the queues. BROADCASTING gives all queues to every consumer, keeps the progress in a file
        under `client_name` (~/.popmq/offsets), and drops messages that fail: a function's at once, an OrderlyListener's
        after max_reconsume_times, so never unless that is set.
    consume_from, consume_timestamp: where to begin in a queue in which the group has no progress:
        CONSUME_FROM_LAST_OFFSET, CONSUME_FROM_FIRST_OFFSET, or CONSUME_FROM_TIMESTAMP with yyyyMMddHHmmss in local time
        or an aware datetime (half an hour ago unless given).
    allocate_strategy: AVG, AVG_BY_CIRCLE, CONSISTENT_HASH, a ByConfig, ByMachineRoom or MachineRoomNearby, or any
        callable of that shape (`AllocateStrategy`); the same for all members.
    offset_store: your own, derived from OffsetStore, or a LocalFileOffsetStore of another folder. Unless given, the
        server keeps the offsets (CLUSTERING), or a file does (BROADCASTING).
    client_name: of this consumer, the same after a restart and of no other; for BROADCASTING.
    pull_batch_size, pull_batch_size_in_bytes: messages per pull, and bytes of their bodies; one message may be larger.
    pull_interval: seconds from a pull that has found messages to the next. pull_delay_when_exception: seconds from a
        pull that has failed to its repetition. pull_max_idle_time: a queue that was not pulled for so long is taken up
        anew.
    pull_threshold_for_queue, pull_threshold_size_for_queue, consume_concurrently_max_span: messages, MiB, and offsets
        from first to last; the consumer does not pull a queue of which it holds more. max_unfinished_span: offsets from
        the first unfinished one to the newest one that was pulled; -1: no limit. A queue whose first message does not
        finish is then not pulled at all; without it, it is pulled slowly, and what was finished meanwhile is delivered
        again after a crash.
    pull_threshold_for_topic, pull_threshold_size_for_topic: divided among the queues that are owned; -1: not used.
    consume_message_batch_max_size: messages per call of the listener. consume_threads: how many tasks call it.
    consume_threads_min: how many threads stay after a minute without work; all unless given. Tasks never stay.
    persist_interval: seconds between two commits of the progress; the first comes 10 s after the start.
    consume_timeout: a message that a function has for longer goes back to the server, and its result does not count.
    max_reconsume_times: after so many failures a message becomes a dead letter, whatever the group says; -1: after the
        group's max attempts less one (16 unless they were set); with an OrderlyListener: never.
    suspend_current_queue_time: the pause of a queue whose OrderlyListener has failed, 0.01 to 30 s.
    post_subscription_when_pull: does the filter of each pull replace that of the settings?
    offset_illegal_delay: seconds until the consumer pulls a queue again whose offset the server has corrected.
    drain_timeout: seconds that `close` waits for calls of the listener that have begun.
    interceptors: called at each step; see `Interceptor`.
    message_queue_listener: called with a topic, its queues, and those of this consumer, whenever its part of the topic
        has changed. It runs in the client's event loop and must be quick.

    Durations are seconds or timedeltas.

    >>> async def listener(messages, context):
    ...     print(messages[0].text)
    ...     return ConsumeConcurrentlyStatus.CONSUME_SUCCESS
    >>> await QueuePushConsumer("127.0.0.1:8081", "billing", "orders", listener).run()    # doctest: +SKIP
    """

    __module__ = "popclient.aio"

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
        pull_max_idle_time: float | timedelta = 120,
        pull_threshold_for_queue: int = 1_000,
        pull_threshold_size_for_queue: int = 100,
        pull_threshold_for_topic: int = -1,
        pull_threshold_size_for_topic: int = -1,
        consume_concurrently_max_span: int = 2_000,
        max_unfinished_span: int = -1,
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
        given = locals()
        options = QueueOptions.among({**given, "flow": QueueLimits.among(given)})
        require_kind(listener, "QueuePushConsumer", is_async=is_async(listener))
        self._config = ClientConfig.of(endpoints)
        self._bridge = Here()
        self._core = QueuePushCore(self._config, options, runner_of(self._bridge))

    async def start(self) -> None:
        """Opens the session, looks the topics up and joins the group; raises NotFound for a group that does not exist,
        UnsupportedByServer and so on. A topic that does not exist is consumed as soon as it does.

        A consumer that could not be started cannot be started again: make a new one.
        """
        await self._start()

    @property
    def state(self) -> ServiceState:
        """CREATE_JUST before the start, then RUNNING, SHUTDOWN_ALREADY or START_FAILED."""
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
        return await self._bridge.run(lambda: self._core.queues(topic))

    async def search_offset(self, mq: MessageQueue, moment: datetime) -> int:
        """The offset of the first message that was stored in the queue at that (aware) time or later; its end if there
        is none."""
        require_queue(mq)
        require_aware("moment", moment)
        return await self._bridge.run(lambda: self._core.search_offset(mq, moment))

    async def send_message_back(self, message: MessageView, delay_level: int = 0) -> bool:
        """Hands a message back to the server, which delivers it again from %RETRY%<group>. True: it is a dead letter
        instead.

        delay_level: 0 by the group's intervals, 1 to 18 by the delay table, negative makes a dead letter at once. The
            listener's result for the message counts too.
        """
        return await self._bridge.run(lambda: self._core.send_message_back(message, delay_level))

    def suspend(self) -> None:
        """Pulls nothing more until `resume`. Messages that are here already are consumed; those of an open pull are
        pulled again."""
        self._core.suspend()

    def resume(self) -> None:
        """Pulls again after `suspend`."""
        self._bridge.post(self._core.resume)

    async def subscribe(self, topic: str, expression: str | FilterExpression = "*") -> None:
        """One more topic, or another filter for one. A topic that does not exist is consumed as soon as it does."""
        wanted = as_topics({topic: expression})
        await self._bridge.run(lambda: self._core.subscribe(topic, wanted[topic]))

    async def unsubscribe(self, topic: str) -> None:
        """Removes a topic: its queues are given up."""
        await self._bridge.run(lambda: self._core.unsubscribe(topic))

    @property
    def _state(self) -> str:
        return self.state
