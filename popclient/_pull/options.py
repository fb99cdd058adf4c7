"""What a pull consumer is told at its making."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from popclient._arguments import MILLISECOND, as_timedelta, require_whole
from popclient._queues.allocation import AllocateStrategy, strategy_of
from popclient._queues.start import ConsumeFromWhere, consume_timestamp_of
from popclient.message import FilterExpression, MessageQueue

HOLD: Final = timedelta(seconds=15)  # that a server may keep a pull which finds nothing (requirement A4)
BATCH_SIZE_MAX: Final = 160  # servers give no more in one pull (requirement B12)


@dataclass(frozen=True, slots=True)
class PullOptions:
    """Checked here, so that nothing starts which could not work.

    filters: what is wanted of a topic; all of one that is not named.
    commit_interval: between two automatic commits; None: there are none.
    """

    group: str
    filters: Mapping[str, FilterExpression]
    consume_from: ConsumeFromWhere
    consume_timestamp: str | datetime | None
    batch_size: int
    max_cached_messages: int
    max_cached_bytes: int
    commit_interval: timedelta | None
    allocate_strategy: AllocateStrategy

    def __post_init__(self) -> None:
        if not isinstance(self.group, str) or not self.group:
            raise ValueError(
                f"group is {self.group!r}; a pull consumer needs the name of a consumer group, for its progress is kept"
                " under it and every pull carries it, even if nothing is ever committed"
            )
        consume_timestamp_of(self.consume_timestamp, datetime.now().astimezone())
        require_whole("batch_size", self.batch_size)
        if self.batch_size > BATCH_SIZE_MAX:
            raise ValueError(f"batch_size is {self.batch_size}; it must be at most {BATCH_SIZE_MAX}")
        require_whole("max_cached_messages", self.max_cached_messages)
        require_whole("max_cached_bytes", self.max_cached_bytes)

    def filter_of(self, topic: str) -> FilterExpression:
        return self.filters.get(topic) or FilterExpression()


def pull_options(
    group: str,
    *,
    filters: Mapping[str, str | FilterExpression],
    consume_from: str,
    consume_timestamp: str | datetime | None,
    batch_size: int,
    max_cached_messages: int,
    max_cached_bytes: int,
    auto_commit: bool,
    commit_interval: float | timedelta,
    allocate_strategy: str | AllocateStrategy,
) -> PullOptions:
    """The options behind what a constructor was given. Raises TypeError or ValueError for what cannot work."""
    interval = as_timedelta("commit_interval", commit_interval, MILLISECOND)
    return PullOptions(
        group,
        {topic: FilterExpression.of(wanted) for topic, wanted in filters.items()},
        ConsumeFromWhere.of(consume_from),
        consume_timestamp,
        batch_size,
        max_cached_messages,
        max_cached_bytes,
        interval if auto_commit else None,
        strategy_of(allocate_strategy),
    )


Wanted = str | MessageQueue | Iterable[str | MessageQueue]


def as_wanted(given: Wanted) -> list[str | MessageQueue]:
    """Topics and queues, one or several."""
    several = [given] if isinstance(given, str | MessageQueue) or not isinstance(given, Iterable) else list(given)
    for each in several:
        if isinstance(each, MessageQueue):
            require_queue(each)
        elif not isinstance(each, str) or not each:
            raise TypeError(f"assign takes topics and queues, such as MessageQueue('flights', 0), not {each!r}")
    return several


def as_topic_names(given: str | Iterable[str]) -> list[str]:
    """One or several."""
    several = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if not several or not all(isinstance(each, str) and each for each in several):
        raise TypeError(f"subscribe takes the name of a topic, or several, not {given!r}; to read queues, assign them")
    return several


def as_offsets(given: Mapping[MessageQueue, int] | None) -> Mapping[MessageQueue, int] | None:
    """Offsets by queue; None stands for all that was polled."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise TypeError(f"commit takes offsets by queue, such as {{MessageQueue('flights', 0): 42}}, not {given!r}")
    for mq, offset in given.items():
        require_queue(mq)
        require_whole(f"the offset of {mq}", offset, 0)
    return dict(given)


def require_queue(given: MessageQueue) -> None:
    """Raises unless it is a queue that may be."""
    if not isinstance(given, MessageQueue) or not isinstance(given.topic, str):
        raise TypeError(f"a queue is a MessageQueue, such as MessageQueue('flights', 0), not {given!r}")
    require_whole("queue_id", given.queue_id, 0)


def require_aware(name: str, given: datetime) -> None:
    if not isinstance(given, datetime):
        raise TypeError(f"{name} is {given!r}; it must be an aware datetime")
    if given.tzinfo is None:
        raise ValueError(f"{name} {given} has no time zone; use an aware datetime")
