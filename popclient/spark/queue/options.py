"""The options of mode `queue`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from popclient.config import ClientConfig
from popclient.message import FilterExpression, MessageQueue
from popclient.spark.columns import Column, schema_of
from popclient.spark.message_columns import COLUMNS, FILTER
from popclient.spark.options import SERVER, OptionReader, OptionTable, flag, number, special, text

EARLIEST: Final = -2
LATEST: Final = -1

# Who reads a batch without consumerGroup. Reading changes no group's progress.
BATCH_GROUP: Final = "popmq-spark"

_OFFSETS: Final = 'give earliest, latest, or offsets such as {"orders": {"0": 12, "1": -2}}; -2 is earliest, -1 latest'


class Bound(NamedTuple):
    """Where reading begins or ends.

    offset: EARLIEST or LATEST, for all queues. of_queues: offsets, EARLIEST or LATEST of single queues. time_ms: the
    first message stored at that time or later, instead of both.
    """

    offset: int
    of_queues: Mapping[MessageQueue, int]
    time_ms: int | None = None


class QueueReadOptions(NamedTuple):
    """What to read of which topics, as which group, in how many parts.

    pattern: for names of topics, if `topics` is empty. fail_on_data_loss: does the query fail if messages were removed
    before it has read them?
    """

    server: ClientConfig
    given_group: str | None
    topics: tuple[str, ...]
    pattern: str | None
    starting: Bound
    ending: Bound
    max_offsets_per_trigger: int | None
    min_partitions: int
    fail_on_data_loss: bool
    expression: FilterExpression
    columns: tuple[Column, ...]

    @property
    def schema(self) -> str:
        """As Spark's DDL."""
        return schema_of(self.columns)

    @property
    def group(self) -> str:
        return self.given_group or BATCH_GROUP

    def refuse_in_a_stream(self) -> None:
        """Raises `ValueError` for an option that only a batch can have, or that only a batch can be without."""
        if self.given_group is None:
            raise ValueError(
                "option consumerGroup is missing; give a group that no other query has: a stream shows its progress"
                " there"
            )
        if self.ending != Bound(LATEST, {}):
            raise ValueError(
                "option endingOffsets or endingTimestamp is for spark.read; a stream has no end: leave it out"
            )

    def refuse_in_a_batch(self) -> None:
        """Raises `ValueError` for an option that only a stream can have."""
        if self.max_offsets_per_trigger is not None:
            raise ValueError(
                f"option maxOffsetsPerTrigger={self.max_offsets_per_trigger} is for spark.readStream; limit a batch"
                " with endingOffsets"
            )


def _topics(given: OptionReader) -> tuple[str, ...]:
    topics = given.names("topic")
    if bool(topics) == bool(_pattern(given)):
        raise given.refuse("topic", "give the topic to read, several separated by commas, or instead topicsPattern")
    return topics


def _pattern(given: OptionReader) -> str | None:
    pattern = given.text("topicsPattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as defect:
            raise given.refuse("topicsPattern", f"give a regular expression: {defect}") from None
    return pattern


def _bound(given: OptionReader, which: str, default: int) -> Bound:
    name = f"{which}Offsets"
    written, time_ms = given.text(name), given.time_ms(f"{which}Timestamp")
    if written is None or time_ms is not None:
        if written is not None:
            raise given.refuse(name, f"give either {name} or {which}Timestamp")
        return Bound(default, {}, time_ms)
    if written.lower() in ("earliest", "latest"):
        return Bound(EARLIEST if written.lower() == "earliest" else LATEST, {})
    try:
        return Bound(default, dict(_of_queues(json.loads(written))))
    except (ValueError, AttributeError):
        raise given.refuse(name, _OFFSETS) from None


def _of_queues(written: Any) -> list[tuple[MessageQueue, int]]:
    """Raises ValueError or AttributeError for anything but {"topic": {"queue": offset}}."""
    found = [
        (MessageQueue(topic, int(queue)), offset)
        for topic, queues in written.items()
        for queue, offset in queues.items()
    ]
    for queue, offset in found:
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < EARLIEST or queue.queue_id < 0:
            raise ValueError(f"{queue} at {offset!r}")
    return found


TABLE: Final = OptionTable(
    {
        "server": SERVER,
        "topics": special(_topics, "topic"),
        "pattern": special(_pattern, "topicsPattern"),
        "given_group": text("consumerGroup"),
        "starting": special(lambda given: _bound(given, "starting", EARLIEST), "startingOffsets", "startingTimestamp"),
        "ending": special(lambda given: _bound(given, "ending", LATEST), "endingOffsets", "endingTimestamp"),
        "max_offsets_per_trigger": number("maxOffsetsPerTrigger", None, 1),
        "min_partitions": number("minPartitions", 1, 1, 1_000),
        "fail_on_data_loss": flag("failOnDataLoss", default=True),
        "expression": FILTER,
        "columns": COLUMNS,
    },
    aliases={
        "subscribe": "topic",
        "subscribePattern": "topicsPattern",
        "maxMessagesPerTrigger": "maxOffsetsPerTrigger",
        "subExpression": "filterExpression",
    },
)


def parse(options: Mapping[str, str]) -> QueueReadOptions:
    """Raises `ValueError` naming the option, its value and what is allowed."""
    return QueueReadOptions(**TABLE.read(options))
