"""The options of a queue push consumer; names and limits are those of RocketMQ's clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from popclient._arguments import MILLISECOND, Options, duration, group_name, option, require_whole, seconds, whole
from popclient._engine.flow import QueueLimits
from popclient._engine.options import topic_filters
from popclient._progress.start import ConsumeFromWhere, consume_timestamp_of
from popclient._progress.store import OffsetStore
from popclient._queues.allocation import AllocateStrategy, strategy_of
from popclient.listening import Interceptor
from popclient.message import FilterExpression, MessageQueue

PULL_BATCH_SIZE_MAX: Final = 1_024
PULL_BATCH_BYTES_MAX: Final = 256 * 1024  # the most messages that servers return in one pull
CONSUME_BATCH_MAX: Final = 1_024
CONSUME_THREADS_MAX: Final = 1_000
PULL_INTERVAL_MAX: Final = timedelta(milliseconds=65_535)
SUSPEND_LEAST: Final = timedelta(milliseconds=10)
SUSPEND_MOST: Final = timedelta(seconds=30)
BY_GROUP: Final = -1  # of max_reconsume_times

MessageQueueListener = Callable[[str, Sequence[MessageQueue], Sequence[MessageQueue]], object]


class MessageModel(StrEnum):
    """CLUSTERING: the members of the group share a topic. BROADCASTING: each member gets all messages."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"

    @classmethod
    def of(cls, given: str) -> MessageModel:
        """The model of that name. Raises ValueError for an unknown name."""
        try:
            return cls(given)
        except ValueError:
            raise ValueError(f"model is {given!r}; it must be one of {', '.join(cls)}") from None


def _listener(name: str, given: object) -> object:
    if not callable(given) and not callable(getattr(given, "consume", None)):
        raise TypeError(f"{name} is {given!r}; give a function that takes messages, or an object that consumes them")
    return given


def _offset_store(name: str, given: OffsetStore | None) -> OffsetStore | None:
    if given is not None and not isinstance(given, OffsetStore):
        raise TypeError(f"{name} is {given!r}; derive it from OffsetStore")
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions(Options):
    """The options of a queue push consumer, checked when it is made (requirement N8); see QueuePushConsumer."""

    group: str = option(group_name("a queue push consumer"))
    topics: Mapping[str, FilterExpression] = option(topic_filters("a queue push consumer"))
    listener: object = option(_listener)
    model: MessageModel = option(lambda _, given: MessageModel.of(given))
    consume_from: ConsumeFromWhere = option(lambda _, given: ConsumeFromWhere.of(given))
    consume_timestamp: str | datetime | None
    allocate_strategy: AllocateStrategy = option(lambda _, given: strategy_of(given))
    offset_store: OffsetStore | None = option(_offset_store)
    client_name: str
    flow: QueueLimits
    pull_batch_size: int = option(whole(1, PULL_BATCH_SIZE_MAX))
    pull_batch_size_in_bytes: int = option(whole(1, PULL_BATCH_BYTES_MAX))
    pull_interval: timedelta = option(duration(most=PULL_INTERVAL_MAX))
    pull_delay_when_exception: timedelta = option(duration(MILLISECOND))
    pull_max_idle_time: timedelta = option(duration(MILLISECOND))
    consume_message_batch_max_size: int = option(whole(1, CONSUME_BATCH_MAX))
    consume_threads: int = option(whole(1, CONSUME_THREADS_MAX))
    consume_threads_min: int | None
    consume_timeout: timedelta = option(duration(MILLISECOND))
    max_reconsume_times: int = option(whole(BY_GROUP, 2**31 - 1))
    suspend_current_queue_time: timedelta = option(duration(SUSPEND_LEAST, SUSPEND_MOST))
    persist_interval: timedelta = option(duration(MILLISECOND))
    post_subscription_when_pull: bool
    offset_illegal_delay: timedelta = option(duration())
    drain_timeout: float = option(seconds())  # seconds
    interceptors: Sequence[Interceptor] = option(lambda _, given: tuple(given))
    message_queue_listener: MessageQueueListener | None

    def _check_together(self) -> None:
        if self.consume_threads_min is not None:
            require_whole("consume_threads_min", self.consume_threads_min, 1, self.consume_threads)
        if self.consume_from is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
            consume_timestamp_of(self.consume_timestamp, datetime.now().astimezone())

    @property
    def most_reconsume_times(self) -> int | None:
        """None leaves it to the group."""
        return None if self.max_reconsume_times == BY_GROUP else self.max_reconsume_times

    @property
    def is_clustering(self) -> bool:
        return self.model is MessageModel.CLUSTERING
