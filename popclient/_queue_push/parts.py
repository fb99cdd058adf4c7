"""What one queue push consumer is made of, by the options it was given."""

from __future__ import annotations

from collections.abc import Callable

from popclient._consume.concurrently import ConsumeConcurrentlyService
from popclient._consume.context import ConsumeContext, ConsumeMessageService, QueueListener, thread_name
from popclient._consume.listener import OrderlyListener, consume_of
from popclient._consume.locks import QueueLocks
from popclient._consume.orderly import ConsumeOrderlyService
from popclient._consume.process_queue import ProcessQueue
from popclient._consume.statistics import Statistics
from popclient._engine.clock import Clock
from popclient._engine.interceptors import InterceptorChain
from popclient._engine.runner import MakeRunner
from popclient._progress.local import LocalFileOffsetStore
from popclient._progress.remote import RemoteOffsetStore
from popclient._progress.start import Generations
from popclient._progress.store import OffsetStore
from popclient._queue_push.options import QueueOptions
from popclient._queue_push.pull_loop import PullLoop
from popclient._queue_push.pull_service import PullContext, Pulls
from popclient._queue_push.rebalance import Changed, Rebalance
from popclient._queue_push.start import StartOffset
from popclient._queue_push.subscriptions import Subscribed
from popclient._queues.allocation import Sharing
from popclient._queues.subscription import is_retry_topic
from popclient._session.session import Session
from popclient._tracing import TracingInterceptor
from popclient.config import ClientConfig
from popclient.errors import PopError
from popclient.message import MessageQueue
from popproto.v2 import definition_pb2 as pb


class Parts:
    """The parts of one consumer.

    on_reset: called with a queue whose progress an operator has moved.
    """

    def __init__(
        self,
        config: ClientConfig,
        options: QueueOptions,
        make_runner: MakeRunner,
        clock: Clock,
        on_reset: Callable[[MessageQueue], None],
    ) -> None:
        self._options = options
        self._clock = clock
        self.orderly = isinstance(options.listener, OrderlyListener)
        self.consume_timeout = options.consume_timeout.total_seconds()
        self.table: dict[MessageQueue, ProcessQueue] = {}
        self.subscribed = Subscribed(options, clock)
        self.session = Session(config, pb.PULL_CONSUMER, options.group, lambda: self.subscribed.wire(config.namespace))
        self.subscribed.note(self.session)
        self.statistics = Statistics(options.group, clock)
        self.offset_store = options.offset_store or self._default_store(on_reset)
        self.generations = Generations()
        self.sharing = Sharing(self.session, options.group, options.allocate_strategy)
        self.beginning = StartOffset(self.session, options, self.offset_store, self.generations)
        self.interceptors = InterceptorChain([TracingInterceptor(config, options.group), *options.interceptors])
        consume, timeout = consume_of(options.listener), self.consume_timeout
        listener = QueueListener(options.group, consume, timeout, self.interceptors, clock)
        self.runner = make_runner(thread_name(options.group), options.consume_threads, options.consume_threads_min)
        self.locks = self._make_locks()
        self.shared = ConsumeContext(
            self.session,
            options.group,
            clock,
            self.statistics,
            self.offset_store,
            listener,
            self.runner,
            options.most_reconsume_times,
            broadcasting=not options.is_clustering,
        )
        self.consume_service = self._make_consume_service()

    def is_awaited(self, topic: str, failure: PopError) -> bool:
        """The topic does not exist: notes that, and returns whether the consumer waits for it."""
        self.generations.missing(topic)
        return is_retry_topic(topic) or self.session.routes.awaits(topic, failure)

    def owned(self) -> list[tuple[MessageQueue, ProcessQueue]]:
        return [(mq, pq) for mq, pq in self.table.items() if not pq.dropped]

    def _default_store(self, on_reset: Callable[[MessageQueue], None]) -> OffsetStore:
        if self._options.is_clustering:
            return RemoteOffsetStore.of(self.session, self._options.group, on_reset)
        return LocalFileOffsetStore(self._options.client_name, self._options.group)

    def _make_locks(self) -> QueueLocks | None:
        if not (self.orderly and self._options.is_clustering):  # whole topics are not shared (requirement F10)
            return None
        return QueueLocks(self.session, self._options.group, self._clock, self.table)

    def _make_consume_service(self) -> ConsumeMessageService:
        options = self._options
        if self.orderly:
            return ConsumeOrderlyService(
                self.shared,
                has_lock=None if self.locks is None else self.locks.has,
                batch_size=options.consume_message_batch_max_size,
                suspend_millis=round(options.suspend_current_queue_time.total_seconds() * 1_000),
                max_reconsume_times=options.max_reconsume_times,
            )
        return ConsumeConcurrentlyService(
            self.shared,
            broadcasting=not options.is_clustering,
            batch_size=options.consume_message_batch_max_size,
            consume_timeout=self.consume_timeout,
            owned=self.owned,
        )

    # ---- With the services of the event loop ----

    def make_pulls(self, context: PullContext, pull_loop: PullLoop) -> Pulls:
        return Pulls(
            self.session,
            self._options,
            context,
            self._clock,
            pull_loop.pulls,
            self.consume_service,
            self.offset_store,
            self.statistics,
            self.interceptors,
            orderly=self.orderly,
            locks=self.locks is not None,
        )

    def make_rebalance(self, pulls: Pulls, changed: Changed, refused: Callable[[], None]) -> Rebalance:
        if self.locks is not None:
            self.locks.when_lost = refused
        return Rebalance(
            self._options.group,
            self._clock,
            self.table,
            self.sharing,
            self.offset_store,
            self.consume_service,
            broadcasting=not self._options.is_clustering,
            pull_max_idle=self._options.pull_max_idle_time.total_seconds(),
            locks=self.locks,
            topics=lambda: self.subscribed.topics,
            beginning=self.beginning,
            missing=self.is_awaited,
            give_up=self.session.give_up,
            dispatch=pulls.again,
            changed=changed,
            refused=refused,
        )
