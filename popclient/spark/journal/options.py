"""What the mode `journal` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from popclient.config import ClientConfig
from popclient.message import FilterExpression
from popclient.spark.given import Given
from popclient.spark.message_columns import Column
from popclient.spark.message_options import columns_from, filter_of
from popclient.spark.server import SERVER_OPTIONS, server_of

_ALIASES: Final = {
    "subscribe": "topic",
    "subExpression": "filterExpression",
    "maxOffsetsPerTrigger": "maxMessagesPerTrigger",
    "minPartitions": "numPartitions",
}
_NAMES: Final = (
    "mode",
    "topic",
    "consumerGroup",
    "journalPath",
    "journalMaxBytes",
    "dedupeMessages",
    "maxMessagesPerTrigger",
    "numPartitions",
    "quietPeriod",
    "filterExpression",
    "filterType",
    "columns",
    "includeHeaders",
    *SERVER_OPTIONS,
)
JOURNAL_BYTES: Final = 1024 * 1024 * 1024
DEDUPE_MESSAGES: Final = 100_000
MESSAGES_PER_TRIGGER: Final = 100_000
NUM_PARTITIONS: Final = 2
NUM_PARTITIONS_MAX: Final = 1_000
QUIET_MS: Final = 2_000


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


def parse(options: Mapping[str, str]) -> JournalOptions:
    """Raises `ValueError` naming the option, its value and what is allowed."""
    given = Given(options, _ALIASES)
    given.refuse_others(_NAMES)
    topics = given.names("topic")
    if not topics:
        raise given.refuse("topic", "give the topic to receive, or several separated by commas")
    return JournalOptions(
        server=server_of(given),
        topics=dict.fromkeys(topics, filter_of(given)),
        group=given.needed("consumerGroup", "give the group to receive as"),
        path=_path(given),
        max_bytes=given.number("journalMaxBytes", JOURNAL_BYTES, 1),
        dedupe_messages=given.number("dedupeMessages", DEDUPE_MESSAGES, 0),
        max_messages=given.number("maxMessagesPerTrigger", MESSAGES_PER_TRIGGER, 1),
        num_partitions=given.number("numPartitions", NUM_PARTITIONS, 1, NUM_PARTITIONS_MAX),
        quiet_ms=given.duration_ms("quietPeriod", QUIET_MS, least=100),
        columns=columns_from(given),
    )


def _path(given: Given) -> Path:
    written = given.needed("journalPath", "give a folder that driver and workers see, this query's alone")
    path = written.removeprefix("file://")
    if "://" in path:
        raise given.refuse("journalPath", "give a folder of a file system, which other storage can be mounted as")
    return Path(path).absolute()  # workers may run in another folder
