"""What the mode `queue` can be told."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from popclient.config import ClientConfig
from popclient.message import FilterExpression, MessageQueue
from popclient.spark.message_columns import COLUMNS, FILTER, Column, schema_of
from popclient.spark.options import OptionReader, OptionTable, flag, needed, number, special
from popclient.spark.server import SERVER

EARLIEST: Final = -2
LATEST: Final = -1

_OFFSETS: Final = 'give earliest, latest, or offsets such as {"orders": {"0": 12, "1": -2}}; -2 is earliest, -1 latest'


class Bound(NamedTuple):
    """Where reading begins or ends, of every queue.

    offset: EARLIEST or LATEST. of_queues: other offsets, or EARLIEST or LATEST again. time_ms: the first message that
    was stored then or later, in place of all that.
    """

    offset: int
    of_queues: Mapping[MessageQueue, int]
    time_ms: int | None = None


class QueueReadOptions(NamedTuple):
    """What to read of which topics, as which group, in how many parts.

    pattern: of the names of topics, where `topics` is empty. fail_on_data_loss: does it end the query that messages are
    gone before they were read?
    """

    server: ClientConfig
    group: str
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

    def refuse_in_a_stream(self) -> None:
        """Raises `ValueError` for what only a batch can do."""
        if self.ending != Bound(LATEST, {}):
            raise ValueError(
                "option endingOffsets or endingTimestamp is for spark.read; a stream has no end: leave it out"
            )

    def refuse_in_a_batch(self) -> None:
        """Raises `ValueError` for what only a stream can do."""
        if self.max_offsets_per_trigger is not None:
            raise ValueError(
                f"option maxOffsetsPerTrigger={self.max_offsets_per_trigger} is for spark.readStream; a batch reads all"
                " from its start to its end: narrow it with endingOffsets"
            )


def _topics(given: OptionReader) -> tuple[str, ...]:
    topics = given.names("topic")
    if bool(topics) == bool(_pattern(given)):
        raise given.refuse("topic", "give the topic to read, or several separated by commas; or else a topicsPattern")
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
            raise given.refuse(name, f"there is a {which}Timestamp too: give one of them")
        return Bound(default, {}, time_ms)
    if written.lower() in ("earliest", "latest"):
        return Bound(EARLIEST if written.lower() == "earliest" else LATEST, {})
    try:
        return Bound(default, dict(_of_queues(json.loads(written))))
    except (ValueError, AttributeError):
        raise given.refuse(name, _OFFSETS) from None


def _of_queues(written: Any) -> list[tuple[MessageQueue, int]]:
    """Raises ValueError or AttributeError for what is no {"topic": {"queue": offset}}."""
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
        "group": needed("consumerGroup", "give a group of this query's own; a stream shows its progress there"),
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
