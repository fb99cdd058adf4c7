"""What a pull consumer is told at its making."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from popclient._arguments import MILLISECOND, as_timedelta, require_whole
from popclient._queues.allocation import AllocateStrategy, strategy_of
from popclient._queues.consume_from import ConsumeFromWhere, consume_timestamp_of
from popclient.message import FilterExpression

HOLD: Final = timedelta(seconds=15)  # that a server may keep a pull which finds nothing (requirement A4)
BATCH_SIZE_MAX: Final = 160  # servers give no more in one pull (requirement B12)


@dataclass(frozen=True, slots=True)
class PullOptions:
    """Checked here, so that nothing starts which could not work.

    filters: what is wanted of a topic; all of one that is not named.
    commit_interval: between two commits that nobody calls; None: none such.
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
