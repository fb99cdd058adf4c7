"""The options of a pull consumer, and the checks of the arguments of its calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from popclient._arguments import MILLISECOND, Options, duration, group_name, option, require_whole, whole
from popclient._progress.start import ConsumeFromWhere, consume_timestamp_of
from popclient._queues.allocation import AllocateStrategy, strategy_of
from popclient.message import FilterExpression, MessageQueue

HOLD: Final = timedelta(seconds=15)  # that a server may keep a pull which finds nothing (requirement A4)
BATCH_SIZE_MAX: Final = 160  # the most messages that servers return in one pull (requirement B12)


def _filters(_: str, given: Mapping[str, str | FilterExpression] | None) -> Mapping[str, FilterExpression]:
    if not isinstance(given or {}, Mapping):
        raise TypeError(f"filters is {given!r}; give a mapping of topics to filters")
    return {topic: FilterExpression.of(wanted) for topic, wanted in (given or {}).items()}


def _consume_timestamp(_: str, given: str | datetime | None) -> str | datetime | None:
    consume_timestamp_of(given, datetime.now().astimezone())
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions(Options):
    """The options of a pull consumer, checked when it is made.

    filters: the filter of a topic; without one, all messages of the topic are read.
    consume_timestamp: see `consume_timestamp_of`.
    """

    group: str = option(
        group_name("a pull consumer", ": every pull carries it, and progress is committed under it, if any is")
    )
    filters: Mapping[str, FilterExpression] = option(_filters)
    consume_from: ConsumeFromWhere = option(lambda _, given: ConsumeFromWhere.of(given))
    consume_timestamp: str | datetime | None = option(_consume_timestamp)
    batch_size: int = option(whole(1, BATCH_SIZE_MAX))
    max_cached_messages: int = option(whole())
    max_cached_bytes: int = option(whole())
    auto_commit: bool
    commit_interval: timedelta = option(duration(MILLISECOND))
    allocate_strategy: AllocateStrategy = option(lambda _, given: strategy_of(given))

    def filter_of(self, topic: str) -> FilterExpression:
        return self.filters.get(topic) or FilterExpression()


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
    """Offsets by queue. None means all that was polled."""
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
