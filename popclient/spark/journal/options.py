"""The options of mode `journal`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from popclient._queues.subscription import DEAD_LETTER_PREFIX
from popclient.config import ClientConfig
from popclient.message import FilterExpression
from popclient.spark.columns import Column, schema_of
from popclient.spark.journal.letters import DEAD_LETTERS, LETTER_COLUMNS
from popclient.spark.message_columns import ALIASES, COLUMNS, FILTER, LAYOUTS, columns_from, filter_of
from popclient.spark.options import SERVER, OptionReader, OptionTable, duration_ms, needed, number, special


class JournalOptions(NamedTuple):
    """topics: the filter of each. max_bytes: of segments that Spark has not committed; at this size receiving stops.
    dedupe_messages: the number of newest messages whose ids are kept. max_messages: of a batch, which has whole
    segments, at least one. quiet_ms: an availableNow query ends when it has received no message from before its start
    for so long."""

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
    written = given.needed("journalPath", "give a folder for this query alone that driver and workers can read")
    path = written.removeprefix("file://")
    if "://" in path:
        raise given.refuse("journalPath", "give a folder of a file system; mount other storage as a folder")
    return Path(path).absolute()  # workers may have another working directory


def _columns(given: OptionReader) -> tuple[Column, ...]:
    """Of messages, or of dead letters."""
    if given.choice("columns", LAYOUTS[0], (*LAYOUTS, DEAD_LETTERS)) != DEAD_LETTERS:
        return columns_from(given)
    if other := next((topic for topic in given.names("topic") if not topic.startswith(DEAD_LETTER_PREFIX)), None):
        raise given.refuse("columns", f"topic {other} has no dead letters; read the topics {DEAD_LETTER_PREFIX}<group>")
    if given.flag("includeHeaders", default=False):
        raise given.refuse("includeHeaders", "dead letters have the column properties; leave it out")
    return LETTER_COLUMNS


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
        "columns": special(_columns, *COLUMNS.names),
        "server": SERVER,
    },
    ALIASES,
)


def parse(options: Mapping[str, str]) -> JournalOptions:
    """Raises `ValueError` naming the option, its value and what is allowed."""
    return JournalOptions(**TABLE.read(options))
