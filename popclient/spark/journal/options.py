"""What the mode `journal` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from popclient.config import ClientConfig
from popclient.message import FilterExpression
from popclient.spark.message_columns import COLUMNS, FILTER, Column, filter_of, schema_of
from popclient.spark.options import OptionReader, OptionTable, duration_ms, needed, number, special
from popclient.spark.server import SERVER


class JournalOptions(NamedTuple):
    """topics: what is wanted of each. max_bytes: of segments that Spark has not committed; then nothing more is
    received. dedupe_messages: of how many the ids are known. max_messages: of a batch, whole segments, at least one.
    quiet_ms: an availableNow query ends when so long nothing came that was stored before it began."""

    server: ClientConfig
    topics: Mapping[str, FilterExpression]
    group: str
    path: Path
    max_bytes: int
    dedupe_messages: int
    max_messages: int
    num_partitions: int
    quiet_ms: int
    columns: tuple[Column, ...]

    @property
    def schema(self) -> str:
        """As Spark's DDL."""
        return schema_of(self.columns)


def _topics(given: OptionReader) -> Mapping[str, FilterExpression]:
    topics = given.names("topic")
    if not topics:
        raise given.refuse("topic", "give the topic to receive, or several separated by commas")
    return dict.fromkeys(topics, filter_of(given))


def _path(given: OptionReader) -> Path:
    written = given.needed("journalPath", "give a folder that driver and workers see, this query's alone")
    path = written.removeprefix("file://")
    if "://" in path:
        raise given.refuse("journalPath", "give a folder of a file system, which other storage can be mounted as")
    return Path(path).absolute()  # workers may run in another folder


TABLE: Final = OptionTable(
    {
        "topics": special(_topics, "topic", *FILTER.names),
        "group": needed("consumerGroup", "give the group to receive as"),
        "path": special(_path, "journalPath"),
        "max_bytes": number("journalMaxBytes", 1024**3, 1),
        "dedupe_messages": number("dedupeMessages", 100_000),
        "max_messages": number("maxMessagesPerTrigger", 100_000, 1),
        "num_partitions": number("numPartitions", 2, 1, 1_000),
        "quiet_ms": duration_ms("quietPeriod", 2_000, 100),
        "columns": COLUMNS,
        "server": SERVER,
    },
    aliases={
        "subscribe": "topic",
        "subExpression": "filterExpression",
        "maxOffsetsPerTrigger": "maxMessagesPerTrigger",
        "minPartitions": "numPartitions",
    },
)


def parse(options: Mapping[str, str]) -> JournalOptions:
    """Raises `ValueError` naming the option, its value and what is allowed."""
    return JournalOptions(**TABLE.read(options))
