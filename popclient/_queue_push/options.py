"""What a queue push consumer is told at its making. Names and limits are the field's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from popclient._arguments import MILLISECOND, as_timedelta, require_within
from popclient._engine.flow import QueueLimits
from popclient._queues.allocation import AllocateStrategy
from popclient._queues.offsets import OffsetStore
from popclient._queues.start import ConsumeFromWhere, consume_timestamp_of
from popclient.listening import Interceptor
from popclient.message import FilterExpression

PULL_BATCH_SIZE_MAX: Final = 1_024
PULL_BATCH_BYTES_MAX: Final = 256 * 1024  # servers give no more in one pull
CONSUME_BATCH_MAX: Final = 1_024
CONSUME_THREADS_MAX: Final = 1_000
PULL_INTERVAL_MAX: Final = timedelta(milliseconds=65_535)
SUSPEND_LEAST: Final = timedelta(milliseconds=10)
SUSPEND_MOST: Final = timedelta(seconds=30)
BY_GROUP: Final = -1  # of max_reconsume_times


class MessageModel(StrEnum):
    """CLUSTERING: members of the group share a topic. BROADCASTING: each member gets everything."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"

    @classmethod
    def of(cls, given: str) -> MessageModel:
        """By its name. Raises ValueError for a name that there is not."""
        try:
            return cls(given)
        except ValueError:
            raise ValueError(f"model is {given!r}; it must be one of {', '.join(cls)}") from None


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Checked here, so that nothing starts which could not work (requirement N8).

    consume_timestamp: as `consume_timestamp_of` takes it; heeded with CONSUME_FROM_TIMESTAMP alone.
    offset_store: the user's own; None: the server for clustering, a file for broadcasting, under `client_name`.
    pull_batch_size, pull_batch_size_in_bytes: messages and bytes of bodies of one pull; servers may give fewer. A
    single message may be larger. pull_interval: between two pulls of a queue. pull_delay_when_exception: until a pull
    that has failed is repeated.
    consume_message_batch_max_size: messages that the listener gets at once.
    consume_threads: how many call the listener at the same time. consume_threads_min: how many of them stay when there
    is nothing to do for a minute; None: all. Tasks, which asyncio has instead, never stay.
    persist_interval: between two commits of the progress; the first comes 10 s after the start.
    consume_timeout: with the listener for longer, a message is handed back.
    max_reconsume_times: after so many a failed message becomes a dead letter; -1: the group's own, in order never.
    suspend_current_queue_time: until an orderly listener that has suspended its queue gets the same messages again.
    post_subscription_when_pull: is the filter of a pull meant in place of the one in the settings?
    offset_illegal_delay: until a queue whose offset the server has corrected is taken up again.
    """

    group: str
    topics: Mapping[str, FilterExpression]
    listener: object
    model: MessageModel
    consume_from: ConsumeFromWhere
    consume_timestamp: str | datetime | None
    allocate_strategy: AllocateStrategy
    offset_store: OffsetStore | None
    client_name: str
    flow: QueueLimits
    interceptors: Sequence[Interceptor]
    pull_batch_size: int = 32
    pull_batch_size_in_bytes: int = PULL_BATCH_BYTES_MAX
    pull_interval: timedelta = timedelta(0)
    pull_delay_when_exception: timedelta = timedelta(seconds=3)
    consume_message_batch_max_size: int = 1
    consume_threads: int = 20
    consume_threads_min: int | None = None
    persist_interval: timedelta = timedelta(seconds=5)
    consume_timeout: timedelta = timedelta(minutes=15)
    max_reconsume_times: int = BY_GROUP
    suspend_current_queue_time: timedelta = timedelta(seconds=1)
    post_subscription_when_pull: bool = False
    offset_illegal_delay: timedelta = timedelta(0)
    drain_timeout: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        self._check_words()
        require_within("pull_batch_size", self.pull_batch_size, 1, PULL_BATCH_SIZE_MAX)
        require_within("consume_message_batch_max_size", self.consume_message_batch_max_size, 1, CONSUME_BATCH_MAX)
        require_within("consume_threads", self.consume_threads, 1, CONSUME_THREADS_MAX)
        if self.consume_threads_min is not None:
            require_within("consume_threads_min", self.consume_threads_min, 1, self.consume_threads)
        require_within("pull_batch_size_in_bytes", self.pull_batch_size_in_bytes, 1, PULL_BATCH_BYTES_MAX)
        as_timedelta("pull_delay_when_exception", self.pull_delay_when_exception, MILLISECOND)
        as_timedelta("persist_interval", self.persist_interval, MILLISECOND)
        require_within("max_reconsume_times", self.max_reconsume_times, BY_GROUP, 2**31 - 1)
        as_timedelta("pull_interval", self.pull_interval, most=PULL_INTERVAL_MAX)
        as_timedelta("consume_timeout", self.consume_timeout, MILLISECOND)
        as_timedelta("suspend_current_queue_time", self.suspend_current_queue_time, SUSPEND_LEAST, SUSPEND_MOST)
        as_timedelta("offset_illegal_delay", self.offset_illegal_delay)
        as_timedelta("drain_timeout", self.drain_timeout)

    def _check_words(self) -> None:
        if not isinstance(self.group, str) or not self.group:
            raise ValueError(f"group is {self.group!r}; a queue push consumer needs the name of its consumer group")
        if not self.topics or not all(self.topics):
            raise ValueError(
                f"topics are {list(self.topics)}; a queue push consumer needs a name for each, and at least one"
            )
        if not callable(self.listener) and not callable(getattr(self.listener, "consume", None)):
            raise TypeError(
                f"listener is {self.listener!r}; give a function that takes messages, or an object that consumes them"
            )
        if self.offset_store is not None and not isinstance(self.offset_store, OffsetStore):
            raise TypeError(f"offset_store is {self.offset_store!r}; derive it from OffsetStore")
        if self.consume_from is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
            consume_timestamp_of(self.consume_timestamp, datetime.now().astimezone())

    @property
    def most_reconsume_times(self) -> int | None:
        """None leaves it to the group."""
        return None if self.max_reconsume_times == BY_GROUP else self.max_reconsume_times

    @property
    def is_clustering(self) -> bool:
        return self.model is MessageModel.CLUSTERING
